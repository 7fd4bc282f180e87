"""Phases of an attempt as its cell reports them: numbered, with their times.

A report contains the changes that the control plane has not acknowledged yet. If there are too many
for a report, the oldest and the newest stay, and the gap in their numbers shows how many were left
out. Numbers make the history idempotent: each change is written once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from controlplane.contract import fields
from controlplane.contract.fields import MalformedMessage
from controlplane.contract.states import Phase

# Of one attempt, so that a runner with frequent phases does not fill the history.
MAX_PHASES = 256
# In one report: changes between two acknowledgements.
MAX_REPORTED = 32
# Number of the oldest changes that stay, if there are more.
_OLDEST = 8
PHASE_CHARS = 200


class PhaseKind(StrEnum):
    """The subject of a change, which determines the meaning of its text."""

    PHASE = "phase"  # the phase of BUILDING that the attempt entered
    RUNNER = "runner"  # the phase that its runner reported
    TRY = "try"  # the number of the failed try, of how many, and why


@dataclass(frozen=True, slots=True)
class PhaseChange:
    """One change: the `number`th of its attempt, `at` seconds since 1970 by the cell's clock."""

    number: int
    at: float
    kind: PhaseKind
    text: str

    def body(self) -> list[Any]:
        """Return the JSON form."""
        return [self.number, self.at, self.kind, self.text]


def shorten(changes: tuple[PhaseChange, ...]) -> tuple[PhaseChange, ...]:
    """Return the changes that fit a report: the oldest few and the newest."""
    if len(changes) <= MAX_REPORTED:
        return changes
    return (*changes[:_OLDEST], *changes[_OLDEST - MAX_REPORTED :])


def unite(*parts: Iterable[PhaseChange]) -> tuple[PhaseChange, ...]:
    """Return the changes of several reports of one attempt, each once, in order."""
    found = {change.number: change for part in parts for change in part}
    return tuple(found[number] for number in sorted(found))


def read_phases(body: Mapping[str, Any], name: str) -> tuple[PhaseChange, ...]:
    """Read the changes in the field `name`; absent means none. Raise MalformedMessage."""
    if body.get(name) is None:
        return ()
    items = fields.listing(body, name, lambda item: item, MAX_REPORTED)
    found: list[PhaseChange] = []
    for position, item in enumerate(items):
        try:
            change = _read_phase(item)
            if found and change.number <= found[-1].number:
                raise MalformedMessage(f"number {change.number} does not follow {found[-1].number}")
        except MalformedMessage as error:
            raise MalformedMessage(f"{name}[{position}]: {error}") from None
        found.append(change)
    return tuple(found)


def _read_phase(item: Any) -> PhaseChange:
    if not isinstance(item, list) or len(item) < 4:
        raise MalformedMessage("a phase is [number, at, kind, text]")
    body = dict(zip(("number", "at", "kind", "text"), item, strict=False))
    number = fields.whole(body, "number")
    if not 1 <= number <= MAX_PHASES:
        raise MalformedMessage(f"number is not from 1 to {MAX_PHASES}")
    try:
        kind = PhaseKind(fields.text(body, "kind"))
        text = fields.text(body, "text", limit=PHASE_CHARS)
        if kind is PhaseKind.PHASE:
            text = Phase(text).value
    except ValueError as error:
        raise MalformedMessage(str(error)) from None
    return PhaseChange(number, fields.instant(body, "at"), kind, text)
