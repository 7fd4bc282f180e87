"""S2.2: an at-most-once task is tried again only if no container of it ever existed."""

from collections.abc import Callable

import pytest

from controlplane import clock
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import TaskState as S
from controlplane.models import Attempt, TaskGroup
from controlplane.spec import InvalidSpec
from tests.scenarios.stage import Stage

ONCE = {"delivery": "at_most_once"}


ENDS: dict[str, tuple[Callable[[Stage, Attempt], None], str]] = {
    "refused": (lambda stage, attempt: stage.refuse(attempt), "FAILED"),
    "system failure": (lambda stage, attempt: stage.fail_system(attempt), "FAILED"),
    "non-zero exit": (lambda stage, attempt: stage.fail(attempt), "FAILED"),
    "vanished": (lambda stage, attempt: stage.vanish(attempt), "WORKER_FAILED"),
    "drained": (lambda stage, attempt: stage.end(attempt, S.PREEMPTED), "PREEMPTED"),
    "cell lost": (lambda stage, attempt: stage.lose(stage.fake_cell_of(attempt)), "WORKER_FAILED"),
    "success": (lambda stage, attempt: stage.succeed(attempt), "SUCCEEDED"),
}


@pytest.mark.parametrize("end", ENDS)
def test_every_end_is_final_whatever_budget_is_left(stage: Stage, end: str) -> None:
    stage.cell()
    job, attempt = stage.placed(**ONCE)
    happens, state = ENDS[end]
    happens(stage, attempt)
    stage.settle()
    assert stage.states(job) == [state]
    stage.cell("another")
    stage.wait(600)
    stage.place()
    assert len(stage.attempts(job)) == 1
    assert stage.job(job).finished_at is not None
    stage.check()


@pytest.mark.parametrize(
    "happens",
    [
        lambda stage, attempt: stage.refuse(attempt, never_created=True),
        lambda stage, attempt: stage.fail_system(attempt, never_created=True),
        lambda stage, attempt: stage.end(attempt, S.PREEMPTED, never_created=True),
    ],
    ids=["refused", "system failure", "drained"],
)
def test_attempt_confirmed_never_created_is_retried(
    stage: Stage, happens: Callable[[Stage, Attempt], None]
) -> None:
    stage.cell()
    job, attempt = stage.placed(**ONCE)
    happens(stage, attempt)
    assert stage.states(job) == ["PENDING"]
    stage.wait(60)
    stage.place()
    assert stage.states(job) == ["ASSIGNED"]
    stage.succeed(stage.last(job))
    assert stage.state(job) == "SUCCEEDED"


def test_retry_budgets_apply_to_never_created_attempts(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.placed(**ONCE, retries={"system": 0})
    stage.fail_system(attempt, never_created=True)
    assert stage.states(job) == ["FAILED"]


def test_never_created_counts_only_together_with_gone(stage: Stage) -> None:
    cell = stage.cell()
    job, attempt = stage.placed(**ONCE)

    word = AttemptReport(str(attempt.uid), 0, S.WORKER_FAILED, reason="refused", never_created=True)
    cell.report(word)
    assert stage.states(job) == ["FAILED"]


def test_unanswered_order_stays_assigned_until_its_cell_reports(stage: Stage) -> None:
    cell = stage.cell()
    job, attempt = stage.placed(**ONCE)
    stage.wait(600)
    stage.converge()
    assert (stage.states(job), cell.stop_orders()) == (["ASSIGNED"], [])
    stage.start(attempt)
    stage.succeed(attempt)
    assert stage.state(job) == "SUCCEEDED"


def test_unanswered_order_ends_with_the_loss_of_its_cell(stage: Stage) -> None:
    cell = stage.cell()
    job, _ = stage.placed(**ONCE)
    stage.lose(cell)
    assert (stage.states(job), stage.state(job)) == (["WORKER_FAILED"], "WORKER_FAILED")


def test_retries_of_failures_are_refused(stage: Stage) -> None:
    with pytest.raises(InvalidSpec, match="must be 0 with delivery at_most_once"):
        stage.submit_small(**ONCE, retries={"failure": 1})


def test_requeued_gang_keeps_its_at_most_once_members_running(stage: Stage) -> None:
    cell = stage.cell()
    groups = [
        stage.group("once", delivery="at_most_once"),
        stage.group("often", replicas=2),
    ]
    job = stage.submit(coscheduled=True, groups=groups)
    stage.place()
    once, one, other = stage.newest(job)
    stage.start(once, one, other)
    stage.vanish(one)
    stage.settle()
    assert stage.states(job) == ["RUNNING", "PENDING", "PENDING"]
    assert cell.stop_orders() == [str(other.uid)]
    stage.confirm(other)
    stage.place()
    assert stage.states(job) == ["RUNNING", "ASSIGNED", "ASSIGNED"]
    stage.check()


def test_delivery_is_set_per_job_and_overridden_per_group(stage: Stage) -> None:
    groups = [stage.group("a"), stage.group("b", delivery="at_least_once")]
    job = stage.submit(groups=groups, **ONCE)
    delivery = dict(TaskGroup.objects.filter(job=job).values_list("name", "at_most_once"))
    assert delivery == {"a": True, "b": False}


def test_at_most_once_job_can_be_cancelled(stage: Stage) -> None:

    stage.cell()
    job, attempt = stage.running(**ONCE)
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    assert stage.states(job) == ["KILLED"]
    stage.confirm(attempt)
    stage.wait(60)
    stage.place()
    assert len(stage.attempts(job)) == 1
