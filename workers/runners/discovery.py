"""Runners by name: the two built-in task types, and the runners of installed packages."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any

import structlog

from controlplane.contract.messages.orders import OWN_TASK_TYPES
from workers.runners.interface import Runner

log = structlog.get_logger(__name__)

GROUP = "cellrun.runners"
ALL = "all"
# A valid `task_type` of a job.
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
# The built-in types have no runner: their attempts run in the pipeline (workers.attempt).
BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        "container": "a container of the engine, by the driver docker",
        "process": "a process of the cell's host, by the driver process",
    }
)
assert set(BUILT_IN) == set(OWN_TASK_TYPES)


class InvalidRunner(Exception):
    """The runner of a package is not usable; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class InstalledRunner:
    """The runner of a package, or the fault for which it is not used."""

    name: str
    value: str
    runner: Runner | None
    fault: str = ""


def discover() -> list[InstalledRunner]:
    """Return all runners of installed packages, usable or not, sorted by name."""
    found: list[InstalledRunner] = []
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            if any(other.name == entry.name and other.runner for other in found):
                raise InvalidRunner("another package has a runner of this name")
            found.append(InstalledRunner(entry.name, entry.value, load_runner(entry)))
        except InvalidRunner as error:
            found.append(InstalledRunner(entry.name, entry.value, None, str(error)))
    return found


@lru_cache(maxsize=1)
def find_runners() -> Mapping[str, Runner]:
    """Return the usable runners of installed packages; log the others."""
    found = discover()
    for item in found:
        if item.runner is None:
            log.error("runner_not_used", runner=item.name, source=item.value, why=item.fault)
    return MappingProxyType({item.name: item.runner for item in found if item.runner is not None})


def load_runner(entry: EntryPoint) -> Runner:
    """Load the runner that an entry point names. Raise InvalidRunner."""
    if entry.name in (*BUILT_IN, ALL) or not NAME.fullmatch(entry.name):
        raise InvalidRunner("its name is reserved or invalid")
    try:
        loaded: Any = entry.load()
        runner = loaded() if isinstance(loaded, type) else loaded
    except Exception as error:  # of the package's code
        raise InvalidRunner(f"{type(error).__name__}: {error}") from error
    missing = [name for name in ("reconcile", "abort") if not callable(getattr(runner, name, None))]
    if missing:
        raise InvalidRunner(f"it has no {' and no '.join(missing)}")
    found: Runner = runner
    return found


def chosen_names(text: str) -> tuple[str, ...]:
    """Return the names in `text`, or for `all` the installed ones. Raise ValueError."""
    installed = tuple(find_runners())
    if text == ALL:
        return installed
    names = tuple(filter(None, (piece.strip() for piece in text.split(","))))
    unknown = [name for name in names if name not in installed]
    if unknown:
        available = ", ".join(installed) or "none"
        raise ValueError(f"{', '.join(unknown)}: not installed here (installed: {available})")
    return names


def load_runners(names: Iterable[str]) -> Mapping[str, Runner]:
    """Return the installed runners of these names. Raise KeyError."""
    return {name: find_runners()[name] for name in names}
