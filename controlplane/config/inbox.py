"""The inbox's Celery app: the control plane's, with the consumer step that takes what cells say."""

from controlplane.config.celery import app

# By name: the step needs Django's tables, which Celery makes ready before it loads its steps.
app.steps["consumer"].add("controlplane.inbox.consumer:InboxStep")

__all__ = ["app"]
