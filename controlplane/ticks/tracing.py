"""The tick of tracing: export the spans of traced jobs in a thread, which holds nothing up."""

from threading import Thread

import structlog
from celery import Task, shared_task
from django.conf import settings
from django.db import connection

from controlplane import clock
from controlplane.commands.traces import export_traces
from controlplane.outbox.wakes import take_wake

NAME = "tracing"
PAGES = 100
"""Pages of one run; the next tick continues."""

log = structlog.get_logger(__name__)


class TracingTask(Task):
    """The Celery task, one instance per process; it owns the thread of the export."""

    def __init__(self) -> None:
        self.thread: Thread | None = None


@shared_task(name="controlplane.ticks.tracing", base=TracingTask, bind=True)
def tracing(self: TracingTask, _woken: bool = False) -> None:
    """Start the export unless it runs or tracing is off; beat sends this task."""
    take_wake(NAME)
    if not settings.CELLRUN.tracing or (self.thread is not None and self.thread.is_alive()):
        return
    self.thread = Thread(target=_export, name="traces", daemon=True)
    self.thread.start()


def _export() -> None:
    try:
        run()
    except Exception:
        # The next tick starts another thread, behind the same cursor.
        log.exception("traces_not_exported")
    finally:
        connection.close()


def run() -> None:
    """Export the next pages to the receiver that the settings name."""
    # The package is an extra, and only this process needs it.
    from controlplane.outbox.spans import SpanSender

    sender = SpanSender(settings.CELLRUN.otlp_endpoint, dict(settings.CELLRUN.otlp_headers))
    try:
        export_traces(sender.send, now=clock.now(), pages=PAGES)
    finally:
        sender.close()
