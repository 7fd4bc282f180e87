"""Runners by name: the two that are cells' own, and those of installed packages."""

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
# What a job may write as its `task_type`.
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
# The cell's own are no reconcilers: their attempts live in the pipeline (workers.attempt).
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
    """What a package offers: its runner, or the fault for which it is not used."""

    name: str
    value: str
    runner: Runner | None
    fault: str = ""


def discover() -> list[InstalledRunner]:
    """Everything that installed packages offer, by name."""
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
    """The runner that an entry point names. Raises InvalidRunner."""
    if entry.name in (*BUILT_IN, ALL) or not NAME.fullmatch(entry.name):
        raise InvalidRunner("its name is taken, or no name")
    try:
        made: Any = entry.load()
        runner = made() if isinstance(made, type) else made
    except Exception as error:  # other people's code, whatever it raises
        raise InvalidRunner(f"{type(error).__name__}: {error}") from error
    missing = [name for name in ("reconcile", "abort") if not callable(getattr(runner, name, None))]
    if missing:
        raise InvalidRunner(f"it has no {' and no '.join(missing)}")
    found: Runner = runner
    return found


def chosen_names(text: str) -> tuple[str, ...]:
    """The runners that `text` names: `all` that are installed, or names. Raises ValueError."""
    installed = tuple(find_runners())
    if text == ALL:
        return installed
    names = tuple(filter(None, (piece.strip() for piece in text.split(","))))
    unknown = [name for name in names if name not in installed]
    if unknown:
        has = ", ".join(installed) or "none"
        raise ValueError(f"{', '.join(unknown)}: not installed here (installed: {has})")
    return names


def load_runners(names: Iterable[str]) -> Mapping[str, Runner]:
    """The installed runners of these names. Raises KeyError."""
    return {name: find_runners()[name] for name in names}
