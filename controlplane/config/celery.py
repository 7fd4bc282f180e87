"""The control plane's Celery app: ticks land here as tasks, orders leave through it."""

import os

from celery import Celery
from celery.signals import setup_logging

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.config.settings")

app = Celery("controlplane")
app.config_from_object("django.conf:settings", namespace="CELERY")


@setup_logging.connect
def _keep_our_logging(**_: object) -> None:
    """Django has configured logging already; Celery must not replace it."""


if __name__ == "__main__":
    app.start()
