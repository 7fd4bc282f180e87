"""Gangs: coscheduled jobs, which run only while they meet their minima.

Sources: Iris "Coscheduled jobs" (a final failure of a member ends its siblings WORKER_FAILED; the
loss of a member requeues the whole gang), Volcano (minima per group and job).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from controlplane.contract.states import TaskState as S
from controlplane.domain.state.states import ACTIVE, OPEN

# Final failures that end the gang. KILLED and UNSCHEDULABLE end the job itself (see `rollup`).
_FINAL_FAILURES = (S.FAILED, S.WORKER_FAILED, S.PREEMPTED)


class GangVerdict(Enum):
    """The decision that follows from the counts of a gang."""

    HOLDS = "holds"
    FELL_BELOW = "fell_below"  # below its minima: all members are requeued
    BROKEN = "broken"  # it can no longer meet its minima: all members end


@dataclass(frozen=True, slots=True)
class GangGroupFacts:
    """One group of a gang. Not `is_movable`: its tasks run at most once."""

    counts: Mapping[S, int]
    min_available: int
    is_movable: bool = True

    @property
    def present(self) -> int:
        """Return the number of members that are active or have succeeded."""
        return sum(self.counts.get(state, 0) for state in (*ACTIVE, S.SUCCEEDED))

    @property
    def possible(self) -> int:
        """Return the number of members that are present or may be placed."""
        return self.present + self.counts.get(S.PENDING, 0)

    @property
    def movable(self) -> int:
        """Return the number of active members that can be requeued."""
        return sum(self.counts.get(s, 0) for s in ACTIVE) if self.is_movable else 0


def judge_gang(groups: Sequence[GangGroupFacts], min_available: int) -> GangVerdict:
    """Compare a started gang with its minima: per group, and in total (`min_available`)."""
    failed = sum(group.counts.get(state, 0) for group in groups for state in _FINAL_FAILURES)
    if failed and not _meets(groups, min_available, [group.possible for group in groups]):
        return GangVerdict.BROKEN
    if meets_minima(groups, min_available) or not any(group.movable for group in groups):
        return GangVerdict.HOLDS
    return GangVerdict.FELL_BELOW


def meets_minima(groups: Sequence[GangGroupFacts], min_available: int) -> bool:
    """Return whether the present members meet the minima."""
    return _meets(groups, min_available, [group.present for group in groups])


def missing(groups: Sequence[GangGroupFacts], min_available: int) -> tuple[list[int], int]:
    """Return how many members must be placed at once to meet the minima.

    The first value is the number for each group, the second the number of further members, of any
    group, for the minimum of the job.
    """
    needs = [max(group.min_available - group.present, 0) for group in groups]
    extra = min_available - sum(group.present for group in groups) - sum(needs)
    return needs, max(extra, 0)


def with_placed(counts: Mapping[S, int], placed: int) -> dict[S, int]:
    """Return the counts after the placement of `placed` waiting members."""
    after = dict(counts)
    after[S.PENDING] = after.get(S.PENDING, 0) - placed
    after[S.ASSIGNED] = after.get(S.ASSIGNED, 0) + placed
    return after


def without_the_open(counts: Mapping[S, int]) -> dict[S, int]:
    """Return the counts after the end of the open tasks of a broken gang."""
    left = {state: count for state, count in counts.items() if state not in OPEN}
    left[S.WORKER_FAILED] = left.get(S.WORKER_FAILED, 0) + sum(counts.get(s, 0) for s in OPEN)
    return left


def _meets(groups: Sequence[GangGroupFacts], min_available: int, members: Sequence[int]) -> bool:
    each = all(count >= group.min_available for group, count in zip(groups, members, strict=True))
    return each and sum(members) >= min_available
