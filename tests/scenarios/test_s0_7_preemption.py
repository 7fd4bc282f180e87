"""S0.7: what a preempted task becomes, and which budget pays for it."""

from typing import Any

import pytest

from controlplane.contract.states import TaskState as S
from controlplane.domain.state.states import Reason
from controlplane.domain.state.transitions import Event
from controlplane.models import Job, Quota
from tests.scenarios.stage import Stage


def preempt(stage: Stage, job: Job) -> None:
    stage.force(job, Event.PREEMPTED, Reason.PREEMPTED)


def test_preemption_before_the_start_is_not_charged(stage: Stage) -> None:
    stage.cell()
    job, _ = stage.placed(retries={"preemption": 0})
    for _ in range(3):
        preempt(stage, job)
        assert (stage.states(job), stage.counters(job)) == (["PENDING"], (0, 0, 0))
        assert (stage.last(job).state, stage.last(job).charged) == (S.PREEMPTED, "")
        stage.confirm(stage.last(job))
        stage.place()


@pytest.mark.parametrize("stands", ["BUILDING", "RUNNING"])
@pytest.mark.parametrize("limit", [0, 2])
def test_preemption_after_the_start_is_charged_until_exhaustion(
    stage: Stage, stands: str, limit: int
) -> None:
    stage.cell()
    job, _ = stage.placed(retries={"preemption": limit})
    for count in range(1, limit + 2):
        stage.begin(stage.last(job), stands)
        preempt(stage, job)
        attempt = stage.last(job)
        assert (attempt.state, attempt.charged) == (S.PREEMPTED, "preemption")
        assert stage.counters(job) == (0, count, 0)
        assert stage.states(job) == ["PENDING" if count <= limit else "PREEMPTED"]
        stage.confirm(attempt)
        stage.place()
    assert len(stage.attempts(job)) == limit + 1
    stage.check()


def test_preemption_and_loss_share_one_budget(stage: Stage) -> None:
    stage.cell()
    job, _ = stage.running(retries={"preemption": 1})
    stage.vanish(stage.last(job))
    stage.place()
    stage.start(stage.last(job))
    preempt(stage, job)
    assert (stage.states(job), stage.counters(job)) == (["PREEMPTED"], (0, 2, 0))


def test_preempted_attempt_holds_capacity_until_confirmed_gone(
    stage: Stage,
) -> None:
    cell = stage.cell(cpu=100)
    job, attempt = stage.running()
    preempt(stage, job)
    assert cell.stop_orders() == [str(attempt.uid)]
    assert stage.last(job).released_at is None
    stage.place()
    assert stage.states(job) == ["PENDING"]
    stage.confirm(attempt)
    stage.place()
    assert stage.states(job) == ["ASSIGNED"]


def test_preempted_task_has_no_back_off(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.running()
    preempt(stage, job)
    assert stage.task(job).not_before is None
    stage.confirm(attempt)
    stage.place()
    assert stage.states(job) == ["ASSIGNED"]


def test_job_out_of_preemption_budget_is_worker_failed(stage: Stage) -> None:
    stage.cell()
    job, _ = stage.running(retries={"preemption": 0}, max_task_failures=0)
    preempt(stage, job)
    assert (stage.states(job), stage.state(job)) == (["PREEMPTED"], "WORKER_FAILED")


def test_gang_ends_when_a_member_has_no_preemption_budget(stage: Stage) -> None:
    stage.cell()
    job = stage.submit_small(coscheduled=True, replicas=2, retries={"preemption": 0})
    stage.place()
    first, _ = stage.newest(job)
    stage.start(first)
    stage.end(first, S.FAILED, failure_kind="outside", reason="killed_outside", exit_code=137)
    stage.settle()
    assert stage.states(job) == ["WORKER_FAILED", "WORKER_FAILED"]


def test_preemption_is_recorded_in_the_history(stage: Stage) -> None:
    stage.cell()
    job, _ = stage.running()
    preempt(stage, job)
    assert stage.history(job)[-1][:2] == ("PENDING", "preempted")


# --------------------------------------------------------------------- victims of preemption


def fill(stage: Stage, band: str, **more: Any) -> Job:
    """One task of that band, which runs and has all of a cell of its own."""
    count = len(stage.fake_cells) + 1
    stage.cell(f"cell-{count}", cpu=100)
    job, _ = stage.running(band=band, name=band, **more)
    return job


def test_higher_band_preempts_the_lowest_band(stage: Stage) -> None:
    batch, interactive, production = (
        fill(stage, band) for band in ("batch", "interactive", "production")
    )
    urgent = stage.submit_small(band="production")
    stage.place()
    assert stage.states(batch) == ["PENDING"]
    assert (stage.states(production), stage.states(interactive)) == (["RUNNING"], ["RUNNING"])
    # The place is free, and the preemptor's, when the victim is confirmed gone.
    assert stage.states(urgent) == ["PENDING"]
    other = stage.submit_small(band="interactive")
    stage.confirm(stage.last(batch))
    stage.place()
    assert (stage.states(urgent), stage.cells(urgent)) == (["ASSIGNED"], ["cell-1"])
    assert stage.states(other) == ["PENDING"]
    assert stage.counters(batch) == (0, 1, 0)


@pytest.mark.parametrize("band", ["production", "interactive", "batch"])
def test_no_preemption_within_a_band(stage: Stage, band: str) -> None:
    job = fill(stage, band)
    stage.submit_small(band=band)
    stage.place()
    assert stage.states(job) == ["RUNNING"]


def test_no_preemption_for_a_task_that_would_still_not_fit(stage: Stage) -> None:
    job = fill(stage, "batch")
    large = {"cpu": 0.2, "memory": "64Mi"}
    stage.submit(resources=large, band="production", allow_unsatisfiable=True)
    stage.place()
    assert stage.states(job) == ["RUNNING"]


@pytest.mark.parametrize("strict", [True, False])
def test_no_preemption_in_a_pool_that_disables_it(stage: Stage, strict: bool) -> None:
    job = fill(stage, "batch")
    stage.policy(preemption=False, strict_fifo=strict)
    stage.submit_small(band="production")
    stage.place()
    assert stage.states(job) == ["RUNNING"]
    stage.policy(preemption=True)
    stage.place()
    assert stage.states(job) == ["PENDING"]


def test_at_most_once_task_is_never_preempted(stage: Stage) -> None:
    job = fill(stage, "batch", delivery="at_most_once")
    stage.submit_small(band="production")
    stage.place()
    assert stage.states(job) == ["RUNNING"]


def test_preemptor_evicts_victims_only_once(stage: Stage) -> None:
    jobs = [fill(stage, "batch") for _ in range(2)]
    stage.submit_small(band="production")
    for _ in range(3):
        stage.place()
    assert sorted(stage.states(job)[0] for job in jobs) == ["PENDING", "RUNNING"]


def test_job_evicted_for_a_job_quota_waits_until_it_was_released(
    stage: Stage,
) -> None:
    stage.cell(cpu=400)
    Quota.objects.create(user=stage.owner, running_jobs=1, highest_band="production")
    batch = stage.submit_small(band="batch", replicas=6)
    stage.place()
    running = stage.newest(batch)
    stage.start(*running)
    urgent = stage.submit_small(band="production")
    stage.place()
    assert stage.states(batch) == ["PENDING"] * 6
    *first, last = running
    stage.confirm(*first)
    stage.place()
    assert (stage.states(urgent), stage.states(batch)) == (["PENDING"], ["PENDING"] * 6)
    stage.confirm(last)
    stage.place()
    assert (stage.states(urgent), stage.states(batch)) == (["ASSIGNED"], ["PENDING"] * 6)
    assert "running jobs" in stage.why(batch)["text"]
    stage.succeed(stage.last(urgent))
    stage.place()
    assert stage.states(batch).count("ASSIGNED") == 4


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"resources": {"cpu_millis": 200}}, "0.2 cores allowed"),
        ({"running_tasks": 2}, "2 running tasks + 1 requested > 2 allowed"),
        ({"running_jobs": 1}, "running job"),
    ],
)
def test_quota_freed_by_evictions_is_not_used_in_another_pool(
    stage: Stage, limits: dict[str, Any], text: str
) -> None:
    Quota.objects.create(user=stage.owner, highest_band="production", **limits)
    stage.cell()
    stage.cell_of("second", "cell-2", cpu=200)
    large = {"cpu": 0.2, "memory": "64Mi"} if "resources" in limits else None
    victim = stage.submit_small(band="batch", replicas=2, pool="second")
    stage.place()
    running = stage.newest(victim)
    stage.start(*running)
    other = stage.submit_small(band="interactive")
    preemptor = stage.submit(
        resources=large or {"cpu": 0.1, "memory": "64Mi"},
        replicas=1 if large else 2,
        band="production",
        pool="second",
    )
    stage.place()
    assert stage.states(victim) == ["PENDING"] * 2
    stage.confirm(*running)
    # The first pass is that of the other pool, in which there is room.
    stage.place()
    assert set(stage.states(preemptor)) == {"ASSIGNED"}
    assert stage.states(other) == ["PENDING"]
    assert text in stage.why(other)["text"]


def test_more_important_task_of_another_pool_uses_quota_freed_by_evictions(stage: Stage) -> None:
    Quota.objects.create(user=stage.owner, highest_band="production", running_tasks=1)
    stage.cell()
    stage.cell_of("second", "cell-2", cpu=100)
    victim = stage.submit_small(band="batch", pool="second")
    stage.place()
    stage.start(stage.last(victim))
    preemptor = stage.submit_small(band="interactive", pool="second")
    stage.place()
    assert stage.states(victim) == ["PENDING"]
    urgent = stage.submit_small(band="production")
    stage.confirm(stage.last(victim))
    stage.place()
    assert (stage.states(urgent), stage.states(preemptor)) == (["ASSIGNED"], ["PENDING"])
