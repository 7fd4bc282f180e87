"""Phases of an attempt as its cell reports them: numbered, with their times.

A report contains the changes that the control plane has not acknowledged yet. If there are too
many, it contains the oldest and the newest, and the gap in their numbers shows how many are
omitted. Numbers make the history idempotent: each change is written once.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Any, Self

from controlplane.contract.codec import Document, Instant, MalformedMessage, Text, read_items
from controlplane.contract.states import Phase

# Changes of one attempt: bounds the history of a runner with frequent phases.
MAX_PHASES = 256
# Changes in one report.
MAX_REPORTED = 32
# The oldest of them, if there are more.
_OLDEST = 8
PHASE_CHARS = 200
_PHASES = frozenset(phase.value for phase in Phase)


class PhaseKind(StrEnum):
    """The subject of a change, which determines the meaning of its text."""

    PHASE = "phase"  # the phase of BUILDING that the attempt entered
    RUNNER = "runner"  # the phase that its runner reported
    TRY = "try"  # the number of the failed try, the maximum, and the error


@dataclass(frozen=True, slots=True)
class PhaseChange(Document):
    """One change. `number`: within its attempt, from 1. `at`: Unix time by the cell's clock."""

    AS_LIST = True

    number: int
    at: Instant
    kind: PhaseKind
    text: Annotated[str, Text(PHASE_CHARS)]

    def checked(self) -> Self:
        """Validate the range of the number, and the name of a phase of BUILDING."""
        if not 1 <= self.number <= MAX_PHASES:
            raise MalformedMessage(f"is not from 1 to {MAX_PHASES}", "number")
        if self.kind is PhaseKind.PHASE and self.text not in _PHASES:
            raise MalformedMessage(f"{self.text!r} is not a phase", "text")
        return self


def shorten(changes: tuple[PhaseChange, ...]) -> tuple[PhaseChange, ...]:
    """Return the changes that fit a report: the oldest few and the newest."""
    if len(changes) <= MAX_REPORTED:
        return changes
    return (*changes[:_OLDEST], *changes[_OLDEST - MAX_REPORTED :])


def unite(*parts: Iterable[PhaseChange]) -> tuple[PhaseChange, ...]:
    """Return the changes of several reports of one attempt by number, without duplicates."""
    by_number = {change.number: change for part in parts for change in part}
    return tuple(by_number[number] for number in sorted(by_number))


def read_phases(items: Any) -> tuple[PhaseChange, ...]:
    """Decode changes, whose numbers must increase. Raise MalformedMessage."""
    changes = read_items(PhaseChange.read, MAX_REPORTED, items)
    for position, (before, after) in enumerate(pairwise(changes), 1):
        if after.number <= before.number:
            text = f"number {after.number} does not follow {before.number}"
            raise MalformedMessage(text, f"[{position}]")
    return changes
