"""The control plane's Celery app: ticks land here as tasks, orders leave through it."""

import os
from typing import Any

from celery import Celery
from celery.app.amqp import AMQP
from celery.signals import setup_logging, task_prerun
from django.db import close_old_connections
from kombu.connection import Connection

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.config.settings")

RETRY_SECONDS_MAX = 5
"""Kombu would let the pauses between two tries grow to 30 s, the length of a cell's lease."""


class PromptConnection(Connection):
    """A broker connection that comes back soon after the broker has."""

    def ensure_connection(
        self, errback: Any = None, max_retries: int | None = None, **options: Any
    ) -> Any:
        """Connect, trying again after 1, 2, … 5, 5, … seconds."""
        pauses = {"interval_start": 1, "interval_step": 1, "interval_max": RETRY_SECONDS_MAX}
        return super().ensure_connection(errback, max_retries, **{**pauses, **options})


class PromptAmqp(AMQP):
    """Celery's way to make connections, with ours in it."""

    Connection = PromptConnection


app = Celery("controlplane", amqp=PromptAmqp)
app.config_from_object("django.conf:settings", namespace="CELERY")
# Celery would close the database connection after each task, and a tick would pay for a new one.
app.add_defaults({"CELERY_DB_REUSE_MAX": 1_000_000_000})


@task_prerun.connect
def _let_go_of_a_dead_connection(**_: object) -> None:
    """Whether the connection still lives is asked when the task first uses it."""
    close_old_connections()


@setup_logging.connect
def _keep_our_logging(**_: object) -> None:
    """Django has configured logging already; Celery must not replace it."""


if __name__ == "__main__":
    app.start()
