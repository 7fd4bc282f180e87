"""The control plane as one Django app: a placement is one transaction over tables of all kinds."""

from django.apps import AppConfig


class ControlplaneConfig(AppConfig):
    """The only app of Cellrun; its tables are in controlplane.models."""

    name = "controlplane"
    label = "controlplane"
    verbose_name = "Cellrun"
    default_auto_field = "django.db.models.BigAutoField"
