"""S4.3: how a job ends follows from the successes per group and of all, against the minima."""

from itertools import product

import pytest

from controlplane.commands.jobs.rerun import retry_job
from controlplane.models import Attempt, Job
from tests.scenarios.plain import PlainGroup, plain_end, volcano
from tests.scenarios.stage import Stage

REPLICAS, MINIMUM = 3, 2
SUCCESSES = {"enough": 3, "just enough": 2, "too few": 1}
TOO_FEW_OF_ALL = 7
"""A minimum of the job that three groups with just enough, which is 6, do not meet."""


def submit(stage: Stage, minimum: int | None, tolerated: int | None) -> Job:
    groups = [stage.group(n, replicas=REPLICAS, min_available=MINIMUM) for n in "abc"]
    limits = {"min_available": minimum, "max_task_failures": tolerated}
    job = stage.submit(groups=groups, **{k: v for k, v in limits.items() if v is not None})
    stage.place()
    return job


def end(stage: Stage, job: Job, successes: tuple[int, ...]) -> list[PlainGroup]:
    """So many tasks of each group succeed, then the others fail; their states."""
    failing: list[Attempt] = []
    for group, count in zip(job.groups.order_by("position"), successes, strict=True):
        attempts = [task.attempts.get() for task in group.tasks.order_by("index")]
        stage.succeed(*attempts[:count])
        failing += attempts[count:]
    stage.fail(*failing)
    stage.settle()
    states = stage.states(job)
    return [PlainGroup(states[n : n + REPLICAS], MINIMUM) for n in (0, 3, 6)]


@pytest.mark.usefixtures("many_slots")
@pytest.mark.parametrize(
    "case", list(product(SUCCESSES, repeat=3)), ids=lambda case: "/".join(case)
)
def test_final_state_of_three_groups_matches_volcano(
    stage: Stage, case: tuple[str, str, str]
) -> None:
    stage.cell(cpu=100_000, memory=100_000)
    successes = tuple(SUCCESSES[name] for name in case)
    for minimum, tolerated in product((None, TOO_FEW_OF_ALL), (None, 9)):
        job = submit(stage, minimum, tolerated)
        groups = end(stage, job, successes)
        of_all = MINIMUM * 3 if minimum is None else minimum
        met = min(successes) >= MINIMUM and sum(successes) >= of_all
        assert met == ("too few" not in case and (minimum is None or "enough" in case))
        assert (volcano(groups, of_all), stage.state(job)) == (
            met,
            "SUCCEEDED" if met else "FAILED",
        )
        if "KILLED" not in stage.states(job):
            spare = 9 - of_all if tolerated is None else tolerated
            assert stage.state(job) == plain_end(groups, minimum=of_all, tolerated=spare)
    stage.check()


def test_job_with_lost_tasks_and_a_met_minimum_succeeds(stage: Stage) -> None:
    stage.cell()
    groups = [stage.group(n, replicas=3, min_available=2) for n in "ab"]
    job = stage.submit(groups=groups, retries={"preemption": 0})
    stage.place()
    lost, *others = stage.newest(job)
    stage.vanish(lost)
    stage.succeed(*others)
    assert stage.state(job) == "SUCCEEDED"


def test_job_with_a_minimum_unmet_by_losses_is_worker_failed(stage: Stage) -> None:
    stage.cell()
    job = stage.submit_small(replicas=3, min_available=2, retries={"preemption": 0})
    stage.place()
    one, two, three = stage.newest(job)
    stage.vanish(one, two)
    stage.succeed(three)
    assert stage.state(job) == "WORKER_FAILED"


def test_minimum_of_zero_is_always_met(stage: Stage) -> None:
    stage.cell()
    job = stage.submit_small(replicas=2, min_available=0)
    stage.place()
    stage.fail(*stage.newest(job))
    assert stage.state(job) == "SUCCEEDED"


def test_surplus_of_one_group_does_not_offset_another_groups_minimum(stage: Stage) -> None:
    stage.cell()
    groups = [
        stage.group("plenty", replicas=5, min_available=1),
        stage.group("lack", replicas=2, min_available=2),
    ]
    job = stage.submit(groups=groups, max_task_failures=7)
    stage.place()
    *plenty, one, other = stage.newest(job)
    stage.succeed(*plenty, one)
    stage.fail(other)
    assert stage.state(job) == "FAILED"
    assert stage.job(job).failure_reason == "only 1 task of group lack succeeded, 2 must"


def test_job_without_a_minimum_needs_every_untolerated_success(stage: Stage) -> None:
    stage.cell()
    for tolerated, state in ((0, "FAILED"), (1, "SUCCEEDED")):
        job = stage.submit_small(replicas=2, max_task_failures=tolerated)
        stage.place()
        one, other = stage.newest(job)
        stage.succeed(one)
        stage.fail(other)
        assert stage.state(job) == state


def test_group_without_an_explicit_minimum_needs_all_replicas(stage: Stage) -> None:
    """Volcano: the minimum of a group "defaults to the task replicas"."""
    stage.cell()
    for happens, state in ((stage.fail, "FAILED"), (stage.vanish, "WORKER_FAILED")):
        groups = [stage.group("a", replicas=3, min_available=1), stage.group("b", replicas=2)]
        job = stage.submit(groups=groups, retries={"preemption": 0})
        stage.place()
        *succeeding, one, other = stage.newest(job)
        stage.succeed(*succeeding)
        happens(one, other)
        assert stage.state(job) == state
        states = stage.states(job)
        groups_of_states = [PlainGroup(states[:3], 1), PlainGroup(states[3:])]
        assert plain_end(groups_of_states, minimum=None, tolerated=2) == state


@pytest.mark.parametrize("form", ["groups", "short"])
def test_job_minimum_counts_the_successes_of_all_tasks(stage: Stage, form: str) -> None:
    """Volcano: "Currently MinAvailable field only supported at job level"."""
    stage.cell()
    for successes, state in ((3, "SUCCEEDED"), (2, "FAILED")):
        if form == "groups":
            job = stage.submit(groups=[stage.group("main", replicas=4)], min_available=3)
        else:
            job = stage.submit_small(replicas=4, min_available=3)
        stage.place()
        attempts = stage.newest(job)
        stage.succeed(*attempts[:successes])
        stage.fail(*attempts[successes:])
        stage.settle()
        assert stage.state(job) == state


def test_job_minimum_is_met_by_successes_of_any_group(stage: Stage) -> None:
    stage.cell()
    for failing, state in ((2, "SUCCEEDED"), (3, "FAILED")):
        groups = [stage.group("a", replicas=3), stage.group("b", replicas=2)]
        job = stage.submit(groups=groups, min_available=3, max_task_failures=5)
        stage.place()
        attempts = stage.newest(job)
        stage.succeed(*attempts[: 5 - failing])
        stage.fail(*attempts[5 - failing :])
        assert stage.state(job) == state


def test_retry_needs_the_minimum_its_job_still_lacked(stage: Stage) -> None:
    stage.cell()
    groups = [stage.group("a", replicas=3, min_available=1), stage.group("b", replicas=2)]
    job = stage.submit(groups=groups)
    stage.place()
    *of_a, one, other = stage.newest(job)
    stage.succeed(of_a[0], one)
    stage.fail(*of_a[1:], other)
    assert stage.state(job) == "FAILED"
    for happens, state in ((stage.fail, "FAILED"), (stage.succeed, "SUCCEEDED")):
        retried = retry_job(job_id=job.pk, guid=None, actor="me", now=stage.now())
        retry = Job.objects.get(pk=retried.job_id)
        stage.place()
        *of_a, last = stage.newest(retry)
        stage.fail(*of_a)
        happens(last)
        assert stage.state(retry) == state
