"""Read and validate the options of `make up` from the environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from controlplane.config.stack.failure import StackError
from controlplane.config.stack.parts import ports
from controlplane.contract.settings_names import CELL, CONTROL_PLANE, unknown_names

# ENGINE -> driver of the cells. `memory` simulates tasks, to try the rest of the system.
DRIVERS = {"docker": "docker", "process": "process", "none": "memory"}
MAX_CELLS = 64


@dataclass(frozen=True, slots=True)
class Options:
    """The options of one stack."""

    home: Path
    web_port: int
    flower_port: int
    cells: int
    engine: str
    database_url: str
    broker_url: str
    overrides: Mapping[str, str]

    @property
    def driver(self) -> str:
        return DRIVERS[self.engine]


def read_options(environ: Mapping[str, str]) -> Options:
    """Return the options in `environ`. Raise StackError naming every invalid one."""
    faults: list[str] = [f"{name}: unknown setting" for name in unknown_names(environ)]
    engine = environ.get("ENGINE") or "docker"
    if engine not in DRIVERS:
        faults.append(f"ENGINE: expected one of {', '.join(DRIVERS)}, not {engine!r}")
    # A shell that read the run/env of a stack has its addresses; a new stack must use its own.
    is_of_other_stack = all(name in environ for name in ("CELLRUN_URL", "CELLRUN_OPERATOR_TOKEN"))
    options = Options(
        home=Path(environ.get("CELLRUN_HOME") or ".cellrun").absolute(),
        web_port=_number(environ, "WEB_PORT", 8000, 65_535, faults),
        flower_port=_number(environ, "FLOWER_PORT", 5555, 65_535, faults),
        cells=_number(environ, "CELLS", 2, MAX_CELLS, faults),
        engine=engine,
        database_url="" if is_of_other_stack else environ.get("DATABASE_URL", ""),
        broker_url="" if is_of_other_stack else environ.get("CELERY_BROKER_URL", ""),
        overrides={
            name: value
            for name, value in environ.items()
            if name in CONTROL_PLANE + CELL and name not in _DECIDED_BY_THE_STACK
        },
    )
    if faults:
        raise StackError("\n".join(["options refused:", *("  " + fault for fault in faults)]))
    return options


def choose_ports(options: Options) -> tuple[int, int]:
    """Return the ports of web and Flower; 0 selects a free port."""
    taken: set[int] = set()
    chosen = []
    for name, port in (("WEB_PORT", options.web_port), ("FLOWER_PORT", options.flower_port)):
        if port and not ports.is_free(port):
            raise StackError(
                f"port {port} is in use: choose another with {name}=…, or a free one with {name}=0"
            )
        chosen.append(port or ports.free_port(taken=taken))
    return chosen[0], chosen[1]


_DECIDED_BY_THE_STACK = (
    "CELLRUN_CELL_BROKER_LOGIN",
    "CELLRUN_CELL_DRIVER",
    "CELLRUN_CELL_EVACUATE",
    "CELLRUN_CELL_HOME",
    "CELLRUN_CELL_KEY_FILE",
    "CELLRUN_CELL_NAME",
    "CELLRUN_CELL_POOL",
    "CELLRUN_CONTROL_URL",
    "CELLRUN_HOME",
    "CELLRUN_INSTALLATION",
    "CELLRUN_PROCESS",
    "CELLRUN_PUBLIC_URL",
    "CELLRUN_REDIS_USERS",
    "CELLRUN_SECRET_KEY",
)


def _number(
    environ: Mapping[str, str], name: str, default: int, largest: int, faults: list[str]
) -> int:
    text = environ.get(name) or str(default)
    if text.isascii() and text.isdigit() and int(text) <= largest:
        return int(text)
    faults.append(f"{name}: expected a whole number from 0 to {largest}, not {text!r}")
    return default


def from_process() -> Options:
    """Return the options in the environment of the current process."""
    return read_options(os.environ)
