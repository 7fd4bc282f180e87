"""The format of log lines, of the control plane and of cells: one JSON object per line."""

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


def build_logging(
    process: str, *, level: str, loggers: dict[str, Any], cell: str | None = None
) -> dict[str, Any]:
    """Return the configuration of the standard library's logging; `level` is the root's.

    `process` is in every line, `cell` in every line that names none itself.
    """

    def add_process(_: object, __: str, event: dict[str, Any]) -> dict[str, Any]:
        event["process"] = process
        if cell is not None:
            event.setdefault("cell", cell)
        return event

    json_lines = {
        "()": structlog.stdlib.ProcessorFormatter,
        "foreign_pre_chain": SHARED_PROCESSORS,
        "processors": [
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            add_process,
            structlog.processors.JSONRenderer(),
        ],
    }
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": json_lines},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": loggers,
    }
