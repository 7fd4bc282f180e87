"""S0.3: budgets of retries: a task is tried again while the counter is at most the limit."""

from collections.abc import Callable
from typing import Any

import pytest

from controlplane import clock
from controlplane.commands.cells.operate import cordon_cell, uncordon_cell
from controlplane.contract.states import TaskState as S
from controlplane.models import Attempt, Job
from tests.scenarios.stage import Stage


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_task_fails_when_its_failures_exceed_the_limit(stage: Stage, limit: int) -> None:
    stage.cell()
    job, _ = stage.placed(retries={"failure": limit})
    for count in range(1, limit + 1):
        stage.fail(stage.last(job))
        assert (stage.states(job), stage.counters(job)) == (["PENDING"], (count, 0, 0))
        stage.wait(300)
        stage.place()
    stage.fail(stage.last(job))
    assert (stage.states(job), stage.counters(job)) == (["FAILED"], (limit + 1, 0, 0))
    assert stage.state(job) == "FAILED"
    assert [row.charged for row in stage.attempts(job)] == ["failure"] * (limit + 1)
    stage.check()


def test_default_limits_are_zero_failures_100_preemptions_three_system(
    stage: Stage,
) -> None:
    group = stage.submit_small().groups.get()
    limits = group.retries_failure, group.retries_preemption, group.retries_system
    assert limits == (0, 100, 3)


@pytest.mark.parametrize("limit", [0, 2])
def test_a_task_is_worker_failed_once_its_losses_exceed_the_limit(stage: Stage, limit: int) -> None:
    stage.cell()
    job, _ = stage.placed(retries={"preemption": limit})
    for count in range(1, limit + 1):
        stage.vanish(stage.last(job))
        assert (stage.states(job), stage.counters(job)) == (["PENDING"], (0, count, 0))
        stage.place()
    stage.vanish(stage.last(job))
    assert (stage.states(job), stage.counters(job)) == (["WORKER_FAILED"], (0, limit + 1, 0))
    assert stage.state(job) == "WORKER_FAILED"
    assert "no retry left" in stage.job(job).failure_reason


def test_retry_budgets_are_independent(stage: Stage) -> None:
    stage.cell()
    job, _ = stage.placed(retries={"failure": 1, "preemption": 1, "system": 1})
    for happens in (stage.fail, stage.vanish, stage.fail_system):
        happens(stage.last(job))
        stage.wait(300)
        stage.place()
    assert stage.counters(job) == (1, 1, 1)
    assert [row.charged for row in stage.attempts(job)] == ["failure", "preemption", "system", ""]
    stage.succeed(stage.last(job))
    assert stage.state(job) == "SUCCEEDED"
    stage.check()


CAUSES: dict[str, tuple[dict[str, object], str, str]] = {
    "non-zero exit": ({"exit_code": 3}, "failure", "exit status 3"),
    "out of memory": (
        {"exit_code": 137, "failure_kind": "user", "reason": "oom"},
        "failure",
        "out of memory",
    ),
    "image not found": (
        {"failure_kind": "user", "reason": "image", "message": "no such image: x"},
        "failure",
        "no such image: x",
    ),
    "killed from outside": (
        {"exit_code": 137, "failure_kind": "outside", "reason": "killed_outside"},
        "preemption",
        "its container was stopped from outside",
    ),
    "vanished": (
        {"failure_kind": "outside", "reason": "vanished"},
        "preemption",
        "its container vanished",
    ),
    "registry does not answer": (
        {"failure_kind": "system", "reason": "registry"},
        "system",
        "the cell's engine, registry or disk failed",
    ),
}


@pytest.mark.parametrize("cause", CAUSES)
def test_charged_budget_follows_from_the_failure_kind(stage: Stage, cause: str) -> None:
    stage.cell()
    facts, budget, text = CAUSES[cause]
    job, attempt = stage.running(retries={"failure": 0, "preemption": 0, "system": 0})
    stage.end(attempt, S.FAILED, **facts)
    assert stage.last(job).charged == budget
    assert stage.task(job).failure_reason == text


PERMANENT = {
    "no such image": ({"reason": "image", "message": "manifest unknown"}, "image_error"),
    "no such command": (
        {"reason": "command", "exit_code": 127, "message": "executable file not found"},
        "command_error",
    ),
    "no such user": ({"reason": "spec", "message": "unable to find user x"}, "user_error"),
}


@pytest.mark.parametrize("mistake", PERMANENT)
def test_permanent_failure_ends_the_task_whatever_its_budget(stage: Stage, mistake: str) -> None:
    stage.cell()
    facts, reason = PERMANENT[mistake]
    job, attempt = stage.placed(retries={"failure": 5})
    stage.end(attempt, S.FAILED, failure_kind="user", **facts)
    assert (stage.states(job), stage.state(job)) == (["FAILED"], "FAILED")
    assert (stage.counters(job), stage.last(job).charged) == ((1, 0, 0), "failure")
    assert (stage.last(job).reason, stage.task(job).failure_reason) == (reason, facts["message"])
    stage.wait(300)
    stage.place()
    assert len(stage.attempts(job)) == 1
    stage.check()


def test_retry_permanent_retries_permanent_failures_on_other_cells(
    stage: Stage,
) -> None:
    stage.cell("cell-1")
    job, first = stage.placed(retries={"failure": 1}, retry_permanent=True)
    stage.cell("cell-2", cpu=2000)
    for attempt in (first, None):
        stage.end(attempt or stage.last(job), S.FAILED, failure_kind="user", reason="image")
        stage.wait(300)
        stage.place()
    assert [stage.fake_cell_of(row).name for row in stage.attempts(job)] == ["cell-1", "cell-2"]
    assert (stage.states(job), stage.counters(job)) == (["FAILED"], (2, 0, 0))


def test_task_unsupported_by_its_cell_is_retried_on_another(stage: Stage) -> None:
    stage.cell("cell-1")
    job, attempt = stage.placed(retries={"failure": 1})
    stage.cell("cell-2", cpu=2000)
    stage.end(attempt, S.FAILED, failure_kind="user", reason="not_here", message="wrong platform")
    stage.wait(300)
    stage.place()
    assert [stage.fake_cell_of(row).name for row in stage.attempts(job)] == ["cell-1", "cell-2"]


def test_final_runner_failure_is_not_retried(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.running(retries={"failure": 5}, retry_permanent=True)
    stage.end(attempt, S.FAILED, failure_kind="user", reason="runner_final", message="no")
    assert (stage.states(job), stage.counters(job)) == (["FAILED"], (1, 0, 0))


def test_group_overrides_retry_permanent_of_its_job(stage: Stage) -> None:
    stage.cell()
    job = stage.submit(
        groups=[
            stage.group("first"),
            stage.group("second", retry_permanent=False),
        ],
        retries={"failure": 1},
        retry_permanent=True,
        max_task_failures=1,
    )
    stage.place()
    for attempt in stage.attempts(job):
        stage.end(attempt, S.FAILED, failure_kind="user", reason="command", exit_code=127)
    assert stage.states(job) == ["PENDING", "FAILED"]


SERVICE: dict[str, Any] = {
    "kind": "inference",
    "ports": ["http"],
    "health_check": {"http": {"port": "http", "path": "/up"}},
}


def crash(stage: Stage, job: Job, *, after: float = 0.0, **facts: Any) -> float:
    """The service's next attempt is RUNNING for so long, and ends; how long the task then waits."""
    stage.place()
    attempt = stage.last(job)
    stage.start(attempt)
    stage.wait(after)
    stage.end(attempt, S.FAILED, **{"exit_code": 1, **facts})
    task = stage.task(job)
    assert (task.state, stage.counters(job)) == (S.PENDING, (0, 0, 0))
    assert task.not_before is not None
    return (task.not_before - stage.now()).total_seconds()


def test_crashing_service_backs_off_up_to_five_minutes(stage: Stage) -> None:
    stage.cell()
    job = stage.submit_small(**SERVICE)
    waits = []
    for _ in range(12):
        waits.append(crash(stage, job, after=2))
        stage.wait(301)
    full = [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]
    assert all(0.74 * most < wait <= most for wait, most in zip(waits, full, strict=True)), waits
    assert stage.task(job).consecutive_crashes == 12
    stage.check()


def test_a_failed_health_check_counts_as_a_crash(stage: Stage) -> None:
    stage.cell()
    job = stage.submit_small(**SERVICE)
    waits = []
    for _ in range(4):
        waits.append(crash(stage, job, exit_code=143, failure_kind="user", reason="health_check"))
        stage.wait(301)
    assert 6 <= waits[-1] <= 8


@pytest.mark.parametrize(("seconds", "most"), [(59, 32), (61, 1)])
def test_back_off_restarts_after_a_service_ran_for_a_minute(
    stage: Stage, seconds: float, most: float
) -> None:
    stage.cell()
    job = stage.submit_small(**SERVICE)
    for _ in range(5):
        crash(stage, job)
        stage.wait(301)
    wait = crash(stage, job, after=seconds)
    assert 0.74 * most < wait <= most


def test_loss_between_crashes_does_not_reset_the_back_off(stage: Stage) -> None:
    stage.cell()
    job = stage.submit_small(**SERVICE)
    for _ in range(4):
        crash(stage, job)
        stage.wait(301)
    stage.place()
    stage.vanish(stage.last(job))
    assert stage.task(job).consecutive_crashes == 4
    stage.place()
    stage.start(stage.last(job))
    stage.wait(61)
    stage.vanish(stage.last(job))
    assert stage.task(job).consecutive_crashes == 0


@pytest.mark.parametrize("mistake", PERMANENT)
def test_permanent_failure_of_a_member_ends_its_gang(stage: Stage, mistake: str) -> None:
    stage.cell()
    facts, reason = PERMANENT[mistake]
    job = stage.submit_small(replicas=3, coscheduled=True, retries={"failure": 5})
    stage.place()
    first, *others = stage.newest(job)
    stage.end(first, S.FAILED, failure_kind="user", **facts)
    stage.settle()
    stage.confirm(*others)
    assert stage.states(job) == ["FAILED", "WORKER_FAILED", "WORKER_FAILED"]
    assert stage.tasks(job)[0].failure_count == 1
    assert [row.reason for row in stage.attempts(job)] == [reason, *["gang_sibling_failed"] * 2]
    stage.wait(300)
    stage.place()
    assert len(stage.attempts(job)) == 3
    stage.check()


@pytest.mark.parametrize("mistake", PERMANENT)
def test_permanently_failing_service_is_not_restarted(stage: Stage, mistake: str) -> None:
    """Though what crashes after it was RUNNING is restarted without end."""
    stage.cell()
    facts, _ = PERMANENT[mistake]
    job = stage.submit_small(**SERVICE, retries={"failure": 5})
    crash(stage, job)
    stage.wait(301)
    stage.place()
    stage.end(stage.last(job), S.FAILED, failure_kind="user", **facts)
    assert (stage.states(job), stage.counters(job)) == (["FAILED"], (1, 0, 0))
    assert len(stage.attempts(job)) == 2


def test_at_most_once_task_is_not_retried_with_retry_permanent(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.placed(delivery="at_most_once", retry_permanent=True)
    stage.end(attempt, S.FAILED, failure_kind="user", reason="image", message="manifest unknown")
    assert (stage.states(job), stage.task(job).failure_reason) == (["FAILED"], "manifest unknown")
    stage.wait(300)
    stage.place()
    assert len(stage.attempts(job)) == 1


def test_cell_loss_is_charged_once_per_attempt(stage: Stage) -> None:
    cell = stage.cell()
    jobs = [stage.running()[0], stage.placed()[0]]
    stage.lose(cell)
    assert [stage.counters(job) for job in jobs] == [(0, 1, 0), (0, 1, 0)]
    assert [stage.states(job) for job in jobs] == [["PENDING"], ["PENDING"]]
    for _ in range(3):
        stage.converge()
    assert [stage.counters(job) for job in jobs] == [(0, 1, 0), (0, 1, 0)]


def test_drain_is_not_charged_and_the_attempt_is_preempted(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.running(retries={"preemption": 0})
    stage.end(attempt, S.PREEMPTED)
    assert (stage.states(job), stage.counters(job)) == (["PENDING"], (0, 0, 0))
    assert (stage.last(job).state, stage.last(job).charged) == (S.PREEMPTED, "")
    stage.place()
    assert stage.states(job) == ["ASSIGNED"]


def test_succeeded_task_is_not_retried(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.running(retries={"failure": 3})
    stage.succeed(attempt)
    stage.wait(300)
    stage.place()
    assert (stage.states(job), len(stage.attempts(job))) == (["SUCCEEDED"], 1)


@pytest.mark.parametrize(
    ("happens", "base", "cap"),
    [
        (lambda stage, attempt: stage.fail(attempt), 1.0, 300.0),
        (lambda stage, attempt: stage.fail_system(attempt), 5.0, 300.0),
        (lambda stage, attempt: stage.refuse(attempt), 5.0, 300.0),
    ],
    ids=["failure", "system", "refusal"],
)
def test_retry_back_off_doubles_up_to_its_cap(
    stage: Stage, happens: Callable[[Stage, Attempt], None], base: float, cap: float
) -> None:
    stage.cell()
    job, _ = stage.placed(retries={"failure": 20, "system": 20})
    for count in range(12):
        before = clock.now()
        happens(stage, stage.last(job))
        task = stage.task(job)
        assert task.not_before is not None
        waits = (task.not_before - before).total_seconds()
        full = min(base * 2**count, cap)
        assert 0.75 * full <= waits <= full + 0.001
        stage.wait(waits * 0.9)
        stage.place()
        assert stage.states(job) == ["PENDING"]
        stage.wait(waits * 0.1)
        stage.place()
        assert stage.states(job) == ["ASSIGNED"]


def test_back_off_of_tasks_that_failed_together_has_jitter(stage: Stage) -> None:
    stage.cell()
    job = stage.submit_small(replicas=8, retries={"failure": 1}, max_task_failures=8)
    stage.place()
    stage.fail(*stage.newest(job))
    waits = {
        round((task.not_before - task.updated_at).total_seconds(), 3)
        for task in stage.tasks(job)
        if task.not_before
    }
    assert len(waits) == 8


@pytest.mark.parametrize(
    "happens",
    [
        lambda stage, attempt: stage.vanish(attempt),
        lambda stage, attempt: stage.end(attempt, S.PREEMPTED),
    ],
    ids=["loss", "drain"],
)
def test_lost_or_preempted_task_has_no_back_off(
    stage: Stage, happens: Callable[[Stage, Attempt], None]
) -> None:
    stage.cell()
    job, attempt = stage.running()
    happens(stage, attempt)
    assert stage.task(job).not_before is None
    stage.place()
    assert stage.states(job) == ["ASSIGNED"]


def test_fifth_consecutive_refusal_is_charged(stage: Stage) -> None:
    stage.cell()
    job, _ = stage.placed(retries={"system": 1})
    for count in range(1, 5):
        stage.refuse(stage.last(job))
        assert (stage.states(job), stage.counters(job)) == (["PENDING"], (0, 0, 0))
        assert stage.task(job).refusal_row == count
        stage.wait(300)
        stage.place()
    stage.refuse(stage.last(job))
    assert (stage.states(job), stage.counters(job)) == (["PENDING"], (0, 0, 1))
    stage.wait(300)
    stage.place()
    stage.refuse(stage.last(job))
    assert (stage.states(job), stage.counters(job)) == (["FAILED"], (0, 0, 2))
    assert stage.last(job).failure_kind == "system"


def test_started_attempt_resets_the_refusal_count(stage: Stage) -> None:
    stage.cell()
    job, _ = stage.placed()
    for _ in range(4):
        stage.refuse(stage.last(job))
        stage.wait(300)
        stage.place()
    stage.build(stage.last(job))
    assert stage.task(job).refusal_row == 0


def test_unanswered_order_is_requeued_without_charge_to_another_cell(
    stage: Stage,
) -> None:
    first = stage.cell()
    job, attempt = stage.placed()
    other = stage.cell("cell-2")
    stage.wait(59)
    assert "unanswered" not in stage.converge()
    stage.wait(2)
    stage.converge()
    given_up = stage.last(job)
    assert (given_up.state, given_up.reason) == (S.WORKER_FAILED, "start_expired")
    assert given_up.released_at is None
    assert first.stop_orders() == [str(attempt.uid)]
    assert (stage.states(job), stage.counters(job)) == (["PENDING"], (0, 0, 0))
    stage.confirm(attempt)
    stage.wait(10)
    stage.place()
    assert stage.fake_cell_of(stage.last(job)) is other


def test_refused_task_avoids_the_cell_while_another_is_available(stage: Stage) -> None:
    first = stage.cell()
    job, attempt = stage.placed()
    second = stage.cell("cell-2")
    cordon_cell(name="cell-2", actor="me", now=clock.now())
    stage.refuse(attempt)
    stage.wait(10)
    stage.place()
    assert stage.fake_cell_of(stage.last(job)) is first
    stage.refuse(stage.last(job))
    uncordon_cell(name="cell-2", actor="me", now=clock.now())
    stage.wait(20)
    stage.place()
    assert stage.fake_cell_of(stage.last(job)) is second


def test_repeated_end_reports_are_charged_once(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.running(retries={"failure": 5, "preemption": 5})
    stage.fail(attempt)
    stage.fail(attempt)
    stage.vanish(attempt)
    stage.fail_system(attempt)
    assert stage.counters(job) == (1, 0, 0)
    assert (stage.last(job).charged, stage.last(job).charge) == ("failure", 1)
    stage.check()


def test_counters_equal_the_charges_of_the_attempts(stage: Stage) -> None:
    stage.cell()
    job, _ = stage.placed(retries={"failure": 9, "preemption": 9, "system": 9})
    for happens in (stage.fail, stage.vanish, stage.fail, stage.fail_system, stage.vanish):
        happens(stage.last(job))
        stage.wait(300)
        stage.place()
    charged = [row.charged for row in stage.attempts(job)]
    charges = tuple(charged.count(name) for name in ("failure", "preemption", "system"))
    assert stage.counters(job) == charges == (2, 2, 1)
