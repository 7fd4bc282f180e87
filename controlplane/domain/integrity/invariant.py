"""An invariant: number, statement, the component that upholds it, check, and repair."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from controlplane.domain.integrity.rows import (
    CellRecord,
    FiringRecord,
    IntegrityRows,
    KeyRecord,
    Record,
    StoredTotalRecord,
)


class Repair(Enum):
    """The kinds of repairs."""

    OPEN = "set attempt_open"
    CLOSE = "clear attempt_open"
    REQUEUE = "requeue the task"
    WATCH = "set is_watched"
    BLOCK = "set waits_for_jobs"
    MEET = "mark a dependency as met"
    FAIL = "mark a dependency as failed"
    COUNT = "write the counts"
    ROLL = "derive the job again"
    SUM = "add up the total again"


class Finding(NamedTuple):
    """A violation by `row`. `repair`: of the row `row_id`; None if it cannot be repaired."""

    row: Record
    text: str
    repair: Repair | None = None
    row_id: int = 0


Check = Callable[[IntegrityRows], Iterable[Finding]]


@dataclass(frozen=True, slots=True)
class Invariant:
    """One invariant; `check` yields its violations.

    `upheld_by`: the components that ensure it. `repair`: how `manage.py recount --repair` and rule
    12 of convergence repair a violation; empty if they do not check it.
    """

    number: int
    statement: str
    upheld_by: str
    repair: str
    check: Check


@dataclass(frozen=True, slots=True)
class InvariantViolation:
    """A violation of the invariant `number`, with the fields of its finding."""

    number: int
    row: Record
    text: str
    repair: Repair | None
    row_id: int

    @property
    def job_id(self) -> int:
        """Return the job of the row; 0 for a cell, a project, a key or an instant."""
        if isinstance(self.row, CellRecord | StoredTotalRecord | KeyRecord | FiringRecord):
            return 0
        return self.row.job_id

    def __str__(self) -> str:
        return f"INV-{self.number} {self.row}: {self.text}"


def invariant(
    number: int, statement: str, *, upheld_by: str, repair: str = ""
) -> Callable[[Check], Invariant]:
    """Decorate the check of the invariant `number`. Numbers are never reused."""
    return lambda check: Invariant(number, statement, upheld_by, repair, check)
