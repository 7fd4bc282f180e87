"""Configure log lines of a cell's processes: JSON on standard error, like the control plane's.

An event has a name in snake_case and its facts as fields; `cell`, `job`, `task` and `attempt` are
ids. The supervisor keeps the lines.
"""

import logging.config
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


def configure_logging(level: str, *, process: str, cell: str | None = None) -> None:
    """Log events of this package from `level` on, and those of libraries from warning on.

    `process` is added to every line, `cell` to every line without one; None: the process serves
    several cells.
    """
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
    logging.config.dictConfig(build_logging(level, process=process, cell=cell))


def build_logging(level: str, *, process: str, cell: str | None) -> dict[str, Any]:
    """Return the configuration of the standard library's logging."""

    def add_process(_: object, __: str, event: dict[str, Any]) -> dict[str, Any]:
        event["process"] = process
        if cell is not None:
            event.setdefault("cell", cell)
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
        "root": {"handlers": ["stderr"], "level": "WARNING"},
        # A level of its own: Celery sets the root's level when its worker starts.
        "loggers": {"workers": {"level": level}},
    }
