"""Derivation of a job's state from the counts of its tasks' states: the first matching rule.

Sources: Iris "Job State Derivation" for the order, Volcano for the final state from successes per
group and job against `min_available`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controlplane.contract.states import TaskState as S
from controlplane.domain.state.states import ACTIVE, TERMINAL


@dataclass(frozen=True, slots=True)
class GroupTally:
    """Counts of a group. `killed_by_dependency`: tasks killed because another group failed."""

    counts: Mapping[S, int]
    min_available: int
    killed_by_dependency: int = 0


@dataclass(frozen=True, slots=True)
class JobTally:
    """The input of the derivation. `explicit_minimum`: the job or a group has one."""

    groups: Sequence[GroupTally]
    min_available: int
    max_task_failures: int
    explicit_minimum: bool
    ever_started: bool

    def count(self, *states: S) -> int:
        """Return the number of tasks of the job in any of `states`."""
        return sum(group.counts.get(state, 0) for group in self.groups for state in states)


def job_state(tally: JobTally) -> S:
    """Derive the state from the counts; if it is terminal, open tasks must end."""
    replicas = tally.count(*S)
    succeeded, failed = tally.count(S.SUCCEEDED), tally.count(S.FAILED)
    excused = sum(group.killed_by_dependency for group in tally.groups)
    all_terminal = tally.count(*TERMINAL) == replicas
    if succeeded == replicas:
        return S.SUCCEEDED
    if failed > tally.max_task_failures:
        return S.FAILED
    if tally.count(S.UNSCHEDULABLE):
        return S.UNSCHEDULABLE
    if tally.count(S.KILLED) > excused:
        return S.KILLED
    if all_terminal:
        return _finished_state(tally, succeeded)
    if tally.ever_started or tally.count(*ACTIVE):
        return S.RUNNING
    return S.PENDING


def _finished_state(tally: JobTally, succeeded: int) -> S:
    if tally.explicit_minimum and _minima_met(tally, succeeded):
        return S.SUCCEEDED
    if tally.count(S.WORKER_FAILED, S.PREEMPTED):
        return S.WORKER_FAILED
    tolerated = succeeded + tally.count(S.FAILED) == tally.count(*S)
    if tally.explicit_minimum or not succeeded or not tolerated:
        return S.FAILED
    return S.SUCCEEDED


def _minima_met(tally: JobTally, succeeded: int) -> bool:
    groups_met = all(
        group.counts.get(S.SUCCEEDED, 0) >= group.min_available for group in tally.groups
    )
    return groups_met and succeeded >= tally.min_available
