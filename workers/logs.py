"""Configure log lines of a cell's processes: JSON on standard error, as of the control plane.

An event has a name in snake_case and its facts as fields; `cell`, `job`, `task` and `attempt` are
ids. The supervisor keeps the lines.
"""

import logging.config
from typing import Any

from controlplane.contract import log_lines


def configure_logging(level: str, *, process: str, cell: str | None = None) -> None:
    """Write every line of this process at `level`, and of libraries at warning and above.

    `process` is in every line. `cell` is in every line that names none itself; None: the process
    serves several cells.
    """
    log_lines.configure_structlog()
    logging.config.dictConfig(build_logging(level, process=process, cell=cell))


def build_logging(level: str, *, process: str, cell: str | None) -> dict[str, Any]:
    """Return the configuration of the standard library's logging."""
    # A level of its own: Celery sets the root's level when its worker starts.
    loggers = {"workers": {"level": level}}
    return log_lines.build_logging(process, level="WARNING", loggers=loggers, cell=cell)
