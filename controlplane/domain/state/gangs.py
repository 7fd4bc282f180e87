"""Gangs: coscheduled jobs, whose minima hold together or not at all.

Sources: Iris "Coscheduled jobs" (a member that fails for good ends its siblings WORKER_FAILED; one
that is lost takes the whole gang back to wait), Volcano for minima per group and job.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from controlplane.contract.states import TaskState as S
from controlplane.domain.state.states import ACTIVE, OPEN

# Ends for good that take the gang along. A kill, and a task that could not be placed, end the job
# by themselves (see `rollup`).
_FAILED_FOR_GOOD = (S.FAILED, S.WORKER_FAILED, S.PREEMPTED)


class GangVerdict(Enum):
    """What the counts of a gang ask for."""

    HOLDS = "holds"
    FELL_BELOW = "fell_below"  # a member went back to wait: all go back
    BROKEN = "broken"  # it can never again meet its minima: all end


@dataclass(frozen=True, slots=True)
class GangGroupFacts:
    """One group of a gang. Not `is_movable`: what has started of it runs at most once."""

    counts: Mapping[S, int]
    min_available: int
    is_movable: bool = True

    @property
    def present(self) -> int:
        """Return members that hold a place, or have done their part."""
        return sum(self.counts.get(state, 0) for state in (*ACTIVE, S.SUCCEEDED))

    @property
    def possible(self) -> int:
        """Return members that are present or may come."""
        return self.present + self.counts.get(S.PENDING, 0)

    @property
    def movable(self) -> int:
        """Return members that would go back to wait with their gang."""
        return sum(self.counts.get(s, 0) for s in ACTIVE) if self.is_movable else 0


def judge_gang(groups: Sequence[GangGroupFacts], min_available: int) -> GangVerdict:
    """Return whether a started gang still meets its minima, per group and of all
    (`min_available`).
    """
    failed = sum(group.counts.get(state, 0) for group in groups for state in _FAILED_FOR_GOOD)
    if failed and not _meets(groups, min_available, [group.possible for group in groups]):
        return GangVerdict.BROKEN
    if meets_minima(groups, min_available) or not any(group.movable for group in groups):
        return GangVerdict.HOLDS
    return GangVerdict.FELL_BELOW


def meets_minima(groups: Sequence[GangGroupFacts], min_available: int) -> bool:
    """Return whether enough members are present."""
    return _meets(groups, min_available, [group.present for group in groups])


def missing(groups: Sequence[GangGroupFacts], min_available: int) -> tuple[list[int], int]:
    """Return how many members must be placed at once so that the minima hold.

    The first value lists the members of each group; the second is the number of further members,
    of any groups, that the job's own minimum asks for.
    """
    needs = [max(group.min_available - group.present, 0) for group in groups]
    extra = min_available - sum(group.present for group in groups) - sum(needs)
    return needs, max(extra, 0)


def with_placed(counts: Mapping[S, int], placed: int) -> dict[S, int]:
    """Return the counts once `placed` of the waiting members have their cells."""
    after = dict(counts)
    after[S.PENDING] = after.get(S.PENDING, 0) - placed
    after[S.ASSIGNED] = after.get(S.ASSIGNED, 0) + placed
    return after


def without_the_open(counts: Mapping[S, int]) -> dict[S, int]:
    """Return the counts once a broken gang has taken its open tasks along."""
    left = {state: count for state, count in counts.items() if state not in OPEN}
    left[S.WORKER_FAILED] = left.get(S.WORKER_FAILED, 0) + sum(counts.get(s, 0) for s in OPEN)
    return left


def _meets(groups: Sequence[GangGroupFacts], min_available: int, members: Sequence[int]) -> bool:
    each = all(count >= group.min_available for group, count in zip(groups, members, strict=True))
    return each and sum(members) >= min_available
