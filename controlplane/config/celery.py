"""The control plane's Celery app: ticks land here as tasks, orders leave through it."""

import os

from celery import Celery
from celery.signals import setup_logging, task_prerun
from django.db import close_old_connections

from controlplane.config.broker import PromptAmqp

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.config.settings")
# Django's checks load each page and address of web: a third of a worker's start. CI runs them.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

app = Celery("controlplane", amqp=PromptAmqp)
app.config_from_object("django.conf:settings", namespace="CELERY")
# Celery would close the database connection after each task, and a tick would pay for a new one.
app.add_defaults({"CELERY_DB_REUSE_MAX": 1_000_000_000})


@task_prerun.connect
def _let_go_of_a_dead_connection(**_: object) -> None:
    """The connection is checked when the task first uses it."""
    close_old_connections()


@setup_logging.connect
def _keep_our_logging(**_: object) -> None:
    """Django has configured logging already; Celery must not replace it."""


if __name__ == "__main__":
    app.start()
