"""The job's state from its tasks': each rule of the list, and its precedence over the next."""

from collections import Counter
from itertools import product

import pytest

from controlplane.contract.states import TaskState as S
from controlplane.domain.state.rollup import GroupTally, JobTally, job_state


def tally(
    *states: S,
    tolerated: int = 0,
    minimum: int | None = None,
    started: bool = False,
    excused: int = 0,
) -> JobTally:
    """A job of one group with tasks in `states`."""
    group = GroupTally(
        counts=Counter(states),
        min_available=len(states) if minimum is None else minimum,
        killed_by_dependency=excused,
    )
    return JobTally(
        groups=(group,),
        min_available=group.min_available,
        max_task_failures=tolerated,
        explicit_minimum=minimum is not None,
        ever_started=started,
    )


@pytest.mark.parametrize(
    ("job", "state"),
    [
        (tally(S.SUCCEEDED, S.SUCCEEDED), S.SUCCEEDED),
        (tally(S.FAILED, S.RUNNING), S.FAILED),
        (tally(S.FAILED, S.RUNNING, tolerated=1), S.RUNNING),
        (tally(S.FAILED, S.UNSCHEDULABLE), S.FAILED),
        (tally(S.UNSCHEDULABLE, S.KILLED, S.RUNNING), S.UNSCHEDULABLE),
        (tally(S.KILLED, S.RUNNING), S.KILLED),
        (tally(S.KILLED, S.FAILED, tolerated=1, excused=1), S.FAILED),
        (tally(S.SUCCEEDED, S.WORKER_FAILED), S.WORKER_FAILED),
        (tally(S.SUCCEEDED, S.PREEMPTED), S.WORKER_FAILED),
        (tally(S.SUCCEEDED, S.FAILED, tolerated=1), S.SUCCEEDED),
        (tally(S.FAILED, S.FAILED, tolerated=2), S.FAILED),
        (tally(S.PENDING, S.ASSIGNED), S.RUNNING),
        (tally(S.PENDING, S.PENDING, started=True), S.RUNNING),
        (tally(S.PENDING, S.PENDING), S.PENDING),
        (tally(S.SUCCEEDED, S.PENDING), S.PENDING),
    ],
)
def test_first_matching_rule_decides(job: JobTally, state: S) -> None:
    assert job_state(job) is state


@pytest.mark.parametrize(
    ("states", "state"),
    [
        ((S.SUCCEEDED, S.SUCCEEDED, S.FAILED), S.SUCCEEDED),
        ((S.SUCCEEDED, S.SUCCEEDED, S.WORKER_FAILED), S.SUCCEEDED),
        ((S.SUCCEEDED, S.FAILED, S.FAILED), S.FAILED),
        ((S.SUCCEEDED, S.FAILED, S.WORKER_FAILED), S.WORKER_FAILED),
    ],
)
def test_explicit_minimum_decides_the_outcome(states: tuple[S, ...], state: S) -> None:
    assert job_state(tally(*states, tolerated=3, minimum=2)) is state


@pytest.mark.parametrize("successes", list(product((1, 2, 3), repeat=3)))
def test_job_of_three_groups_succeeds_only_if_each_meets_its_minimum(
    successes: tuple[int, ...],
) -> None:
    groups = tuple(GroupTally(Counter({S.SUCCEEDED: n, S.FAILED: 3 - n}), 2) for n in successes)
    job = JobTally(groups, 6, 9, explicit_minimum=True, ever_started=True)
    enough = all(n >= 2 for n in successes)
    assert job_state(job) is (S.SUCCEEDED if enough else S.FAILED)


def test_group_minimum_applies_at_either_level_of_an_explicit_minimum() -> None:
    one = GroupTally({S.SUCCEEDED: 2, S.WORKER_FAILED: 1}, 2)
    other = GroupTally({S.SUCCEEDED: 1}, 1)
    job = JobTally((one, other), 3, 0, explicit_minimum=True, ever_started=True)
    assert job_state(job) is S.SUCCEEDED
    failed = GroupTally({S.FAILED: 1}, 1)
    job = JobTally((one, failed), 2, 1, explicit_minimum=True, ever_started=True)
    assert job_state(job) is S.WORKER_FAILED
    met = GroupTally({S.SUCCEEDED: 3}, 1)
    job = JobTally((met, failed), 2, 1, explicit_minimum=True, ever_started=True)
    assert job_state(job) is S.FAILED


def test_default_minimum_does_not_decide_the_outcome() -> None:
    group = GroupTally({S.SUCCEEDED: 1, S.WORKER_FAILED: 1}, 1)
    job = JobTally((group,), 1, 0, explicit_minimum=False, ever_started=True)
    assert job_state(job) is S.WORKER_FAILED


def test_by_default_no_kill_is_excused() -> None:
    killed = GroupTally({S.KILLED: 1, S.SUCCEEDED: 1}, 1)
    assert job_state(JobTally((killed,), 1, 0, True, ever_started=True)) is S.KILLED
