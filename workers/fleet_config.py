"""A fleet's settings, read once from the environment; an error names all invalid ones.

A fleet reads the settings of a cell (see `workers.config`), the number of its cells
(`CELLRUN_FLEET_SIZE`), the prefix of their names (`CELLRUN_FLEET_PREFIX`) and the folder with one
key file for each, named like the cell (`CELLRUN_FLEET_KEYS`).
"""

from collections.abc import Mapping
from pathlib import Path

from workers.config import CellConfig, MalformedSettings

MAX_CELLS = 2_000
DEFAULT_PREFIX = "fleet-"
DEFAULT_HOME = ".cellrun/fleet"


def read_fleet(env: Mapping[str, str]) -> list[CellConfig]:
    """Return the settings of each cell of the fleet in `env`. Raise MalformedSettings."""
    size = _size(env.get("CELLRUN_FLEET_SIZE", ""))
    prefix = env.get("CELLRUN_FLEET_PREFIX") or DEFAULT_PREFIX
    keys = Path(_needed(env, "CELLRUN_FLEET_KEYS")).expanduser()
    if (env.get("CELLRUN_CELL_DRIVER") or "memory") != "memory":
        raise MalformedSettings("CELLRUN_CELL_DRIVER: a fleet supports only the driver memory")
    shared = {
        **env,
        "CELLRUN_CELL_DRIVER": "memory",
        # All cells share one connection, which cannot use the logins of each of them.
        "CELLRUN_CELL_BROKER_LOGIN": "url",
        "CELLRUN_CELL_HOME": env.get("CELLRUN_CELL_HOME") or DEFAULT_HOME,
    }
    return [
        CellConfig.from_env(
            {**shared, "CELLRUN_CELL_NAME": name, "CELLRUN_CELL_KEY_FILE": str(keys / name)}
        )
        for name in fleet_names(prefix, size)
    ]


def fleet_names(prefix: str, size: int) -> list[str]:
    """Return the names of the cells: fleet-000, fleet-001, …"""
    return [f"{prefix}{number:03d}" for number in range(size)]


def _size(text: str) -> int:
    if text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_CELLS:
        return int(text)
    raise MalformedSettings(
        f"CELLRUN_FLEET_SIZE: a whole number from 1 to {MAX_CELLS} is expected, not {text!r}"
    )


def _needed(env: Mapping[str, str], name: str) -> str:
    if not env.get(name):
        raise MalformedSettings(f"{name} is not set")
    return env[name]
