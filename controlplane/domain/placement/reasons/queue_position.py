"""Queue position of one waiting task in its pool, as figures and as a text."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from controlplane.domain.state.states import Band

# The order of other sequencers depends on shares, or on another package.
_BY_JOB = frozenset({"fifo", "lifo"})


@dataclass(frozen=True, slots=True)
class QueuedGroup:
    """`count` waiting tasks of one group. `is_first`: members of a gang that has begun.

    `rank`: the place of its job in the band, the lowest first.
    """

    band: Band
    is_first: bool
    is_child: bool
    job_id: int
    position: int
    count: int
    job_name: str = ""
    rank: int = 0

    def turn(self, sequencer: str) -> tuple[int, ...]:
        """Return the sort key, ascending; gangs that have begun are always ordered by job."""
        if self.is_first:
            return self.band, 0, self.rank, not self.is_child, self.job_id, self.position
        job = -self.job_id if sequencer == "lifo" else self.job_id
        return self.band, 1, self.rank, not self.is_child, job, self.position


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """Position of a task: 1 is tried first, `of` tasks wait. `behind_job`: the job before it.

    `is_estimate`: the order does not depend on jobs alone, or too many tasks wait to count each.
    """

    position: int
    of: int
    behind_job: int | None = None
    behind_name: str = ""
    is_estimate: bool = False

    def as_document(self) -> dict[str, Any]:
        """Return {position, of, behind, estimate, text}."""
        job, name = self.behind_job, self.behind_name
        return {
            "position": self.position,
            "of": self.of,
            "behind": None if job is None else {"job": job, "name": name},
            "estimate": self.is_estimate,
            "text": self._text(),
        }

    def _text(self) -> str:
        about = "about " if self.is_estimate else ""
        behind = f", behind job {self.behind_job}" if self.behind_job is not None else ""
        return f"position {about}{self.position} of {self.of} in the queue of its pool{behind}"


def find_place(
    groups: Iterable[QueuedGroup], own: QueuedGroup, before: int, sequencer: str
) -> QueuePlace:
    """Return the place of the task of `own` after `before` tasks of the same group.

    `groups`: all startable groups with waiting tasks in the pool, with `own`.
    """
    mine, total, ahead = own.turn(sequencer), 0, before
    last: QueuedGroup | None = None
    for group in groups:
        total += group.count
        turn = group.turn(sequencer)
        if turn >= mine:
            continue
        ahead += group.count
        if group.job_id != own.job_id and (last is None or turn > last.turn(sequencer)):
            last = group
    return QueuePlace(
        ahead + 1,
        total,
        None if last is None else last.job_id,
        "" if last is None else last.job_name,
        is_estimate=not is_by_job(sequencer),
    )


def is_by_job(sequencer: str) -> bool:
    """Return whether a sequencer orders by job."""
    return sequencer in _BY_JOB
