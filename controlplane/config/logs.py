"""Configure logging: one JSON object per line on standard error, which the supervisor stores."""

from typing import Any

import structlog

SHARED_PROCESSORS: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.PositionalArgumentsFormatter(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.StackInfoRenderer(),
    structlog.processors.format_exc_info,
]

QUIET = (
    "amqp",
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


def configure_structlog() -> None:
    """Route structlog through the standard library's logging."""
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *SHARED_PROCESSORS,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def build_logging(level: str, process: str) -> dict[str, Any]:
    """Return Django's LOGGING: everything at `level` as JSON, libraries at warning and above."""

    def add_process(_: object, __: str, event: dict[str, Any]) -> dict[str, Any]:
        event["process"] = process
        return event

    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "json": {
                "()": structlog.stdlib.ProcessorFormatter,
                "foreign_pre_chain": SHARED_PROCESSORS,
                "processors": [
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    add_process,
                    structlog.processors.JSONRenderer(),
                ],
            }
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            **{name: {"level": "WARNING"} for name in QUIET},
            # Without uvicorn's own handlers, its lines have the common format.
            **{name: {"handlers": [], "propagate": True} for name in ("uvicorn", "uvicorn.error")},
        },
    }
