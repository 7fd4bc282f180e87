"""The control plane's Celery app, which runs the ticks as tasks."""

import os

from celery import Celery
from celery.signals import setup_logging, task_prerun, worker_ready
from django.db import close_old_connections
from kombu import Queue

from controlplane.config.broker import PromptAmqp
from controlplane.config.collector import relax_collector

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.config.settings")
# Django's checks load all views of web, a third of a worker's start time. CI runs them.
os.environ.setdefault("CELERY_SKIP_CHECKS", "1")

TASK_QUEUES = ("placement", "convergence", "callbacks", "inbox.control")

app = Celery("controlplane", amqp=PromptAmqp)
app.config_from_object("django.conf:settings", namespace="CELERY")
# Messages are removed as they are read. A message whose acknowledgement fails would remain in
# progress, and a worker that runs one task at a time would never read another.
app.conf.task_queues = [
    Queue(name, exchange="", routing_key=name, no_declare=True, no_ack=True) for name in TASK_QUEUES
]
# Celery would close the database connection after each task, and a tick would pay for a new one.
app.add_defaults({"CELERY_DB_REUSE_MAX": 1_000_000_000})


@worker_ready.connect
def _relax_collector(**_: object) -> None:
    """Tune the garbage collector once the worker is loaded."""
    relax_collector()


@task_prerun.connect
def _close_dead_connection(**_: object) -> None:
    """Close the database connection if it is unusable, when the task first uses it."""
    close_old_connections()


@setup_logging.connect
def _keep_logging(**_: object) -> None:
    """Keep the logging that Django has configured: Celery would replace it."""


if __name__ == "__main__":
    app.start()
