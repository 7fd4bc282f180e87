"""Configure log lines of a cell's processes: JSON on standard error, like the control plane's.

An event has a name in snake_case and its facts as fields; `cell`, `job`, `task` and `attempt` are
ids. The supervisor keeps the lines.
"""

import logging.config
from typing import Any

from controlplane.contract import log_lines


def configure_logging(level: str, *, process: str, cell: str | None = None) -> None:
    """Log events of this package from `level` on, and those of libraries from warning on.

    `process` is added to every line, `cell` to every line without one; None: the process serves
    several cells.
    """
    log_lines.configure_structlog()
    logging.config.dictConfig(build_logging(level, process=process, cell=cell))


def build_logging(level: str, *, process: str, cell: str | None) -> dict[str, Any]:
    """Return the configuration of the standard library's logging."""
    # A level of its own: Celery sets the root's level when its worker starts.
    loggers = {"workers": {"level": level}}
    return log_lines.build_logging(process, level="WARNING", loggers=loggers, cell=cell)
