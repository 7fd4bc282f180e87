"""The inbox's Celery app: the control plane's app with the consumer step for cell reports."""

from controlplane.config.celery import app

# By name: the step needs Django's models, which Celery loads before its steps.
app.steps["consumer"].add("controlplane.inbox.consumer:InboxStep")

__all__ = ["app"]
