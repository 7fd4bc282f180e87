"""The place of one waiting task among all that wait in its pool, as figures and as a sentence."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from controlplane.domain.state.states import Band

# Of the other sequencers the order depends on shares, or on what another package does.
_BY_JOB = frozenset({"fifo", "lifo"})


@dataclass(frozen=True, slots=True)
class QueuedGroup:
    """`count` waiting tasks of one group. `is_first`: they complete a gang that has begun."""

    band: Band
    is_first: bool
    is_child: bool
    job_id: int
    position: int
    count: int
    job_name: str = ""

    def turn(self, sequencer: str) -> tuple[int, ...]:
        """What comes first is least; gangs that have begun come in order of jobs anyway."""
        if self.is_first:
            return self.band, 0, self.job_id, self.position
        job = -self.job_id if sequencer == "lifo" else self.job_id
        return self.band, 1, not self.is_child, job, self.position


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """`position` 1 is tried first, `of` tasks wait. `behind_job`: the one tried just before.

    `is_estimate`: the order is not that of jobs alone, or too many wait to look at each.
    """

    position: int
    of: int
    behind_job: int | None = None
    behind_name: str = ""
    is_estimate: bool = False

    def as_document(self) -> dict[str, Any]:
        """{position, of, behind, estimate, text}."""
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
        return f"{about}{self.position} of {self.of} that wait in its pool{behind}"


def find_place(
    groups: Iterable[QueuedGroup], own: QueuedGroup, before: int, sequencer: str
) -> QueuePlace:
    """Return the place of the task of `own` before which `before` tasks of its own group wait.

    `groups`: all that may start and wait in the pool, `own` among them.
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
    """Return whether the order of a pool's sequencer is that of its jobs."""
    return sequencer in _BY_JOB
