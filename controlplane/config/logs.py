"""Configure logging: one JSON object per line on standard error, which the supervisor stores."""

from typing import Any

from controlplane.contract import log_lines

QUIET = (
    "amqp",
    "authlib",  # logs secrets of a login at DEBUG
    "celery.app.trace",
    "celery.beat",
    "celery.worker.strategy",
    "kombu",
    "psycopg.pool",
    "tornado.access",
    "urllib3",
    "uvicorn.access",
)
"""Libraries that log warnings only: the ticks alone would log three lines per second."""


def build_logging(level: str, process: str) -> dict[str, Any]:
    """Return Django's LOGGING: everything at `level` as JSON, libraries at warning and above."""
    loggers = {
        **{name: {"level": "WARNING"} for name in QUIET},
        # The stream of the audit log does not depend on the level of the other lines.
        "cellrun.audit": {"level": "INFO"},
        # Without uvicorn's own handlers, its lines have the common format.
        **{name: {"handlers": [], "propagate": True} for name in ("uvicorn", "uvicorn.error")},
    }
    return log_lines.build_logging(process, level=level, loggers=loggers)
