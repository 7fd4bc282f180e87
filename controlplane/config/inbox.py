"""The inbox's Celery app: the control plane's app, which also receives reports and guards Redis."""

from controlplane.config.celery import app

# By name: the steps need Django's models, which Celery loads before its steps.
app.steps["consumer"].add("controlplane.inbox.consumer:InboxStep")
app.steps["worker"].add("controlplane.inbox.guard_step:GuardStep")

__all__ = ["app"]
