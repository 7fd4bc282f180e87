"""S2.1: one-off tasks with guid, domain and definition, as Diego's clients see them."""

from collections.abc import Callable

import pytest

from controlplane.commands.cells.operate import drain_cell
from controlplane.contract.states import TaskState as S
from controlplane.domain.errors import Conflict
from controlplane.domain.jobs.one_offs import Lifecycle
from controlplane.domain.jobs.submission import TaskGuidTaken
from controlplane.models import Attempt, Job, OneOff
from controlplane.spec import InvalidSpec
from controlplane.spec.one_off import parse_one_off
from tests.scenarios.diego import cancel, completed, desire, fetch, lifecycle, listed, running
from tests.scenarios.stage import SMALL, Stage


def test_lifecycle_is_pending_running_completed(stage: Stage) -> None:
    stage.cell()
    job = desire(stage)
    seen = [lifecycle(stage)]
    stage.place()
    seen.append(lifecycle(stage))
    stage.build(stage.last(job))
    seen.append(lifecycle(stage))
    stage.start(stage.last(job))
    seen.append(lifecycle(stage))
    stage.succeed(stage.last(job))
    seen.append(lifecycle(stage))
    assert seen == ["PENDING", "PENDING", "RUNNING", "RUNNING", "COMPLETED"]
    assert fetch(stage)["failed"] is False
    stage.check()


ENDS: dict[str, Callable[[Stage, Attempt], None]] = {
    "SUCCEEDED": lambda stage, attempt: stage.succeed(attempt),
    "FAILED": lambda stage, attempt: stage.fail(attempt),
    "KILLED": lambda stage, attempt: cancel(stage),
    "WORKER_FAILED": lambda stage, attempt: stage.vanish(attempt),
    "PREEMPTED": lambda stage, attempt: stage.end(attempt, S.PREEMPTED),
}


@pytest.mark.parametrize("state", ENDS)
def test_every_terminal_state_is_completed(stage: Stage, state: str) -> None:
    stage.cell()
    ENDS[state](stage, running(stage))
    task = fetch(stage)
    assert (task["state"], task["lifecycle"]) == (state, "COMPLETED")
    assert task["failed"] is (state != "SUCCEEDED")


@pytest.mark.parametrize("guid", ["", "a b", "a/b", "ä", "a.b", "1234", "x" * 256])
def test_a_malformed_guid_is_refused(stage: Stage, guid: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        desire(stage, guid)
    assert {fault.field for fault in refused.value.faults} == {"guid"}
    assert not Job.objects.exists()


def test_a_domain_and_a_definition_are_required(stage: Stage) -> None:
    for body in ({"guid": "one", "definition": SMALL}, {"guid": "one", "domain": "build"}):
        with pytest.raises(InvalidSpec, match="is required"):
            parse_one_off(body)


@pytest.mark.parametrize("domain", ["build", "other"])
def test_guid_in_use_is_refused_in_any_domain(stage: Stage, domain: str) -> None:
    desire(stage)
    with pytest.raises(TaskGuidTaken, match="guid one belongs to task"):
        desire(stage, domain=domain)
    with pytest.raises(TaskGuidTaken):
        desire(stage.user("mallory"), domain=domain)
    assert (Job.objects.count(), OneOff.objects.count()) == (1, 1)


def test_tasks_are_listed_by_domain_cell_and_lifecycle(stage: Stage) -> None:
    stage.cell()
    completed(stage, "done")
    running(stage, "runs")
    desire(stage, "waits", "other")
    assert listed(stage) == ["waits", "runs", "done"]
    assert listed(stage, domain="build") == ["runs", "done"]
    assert listed(stage, cell="cell-1") == ["runs", "done"]
    assert listed(stage, lifecycles=[Lifecycle.COMPLETED]) == ["done"]
    assert listed(stage, lifecycles=[Lifecycle.PENDING], domain="build") == []


def test_cancelled_pending_task_fails_and_never_runs(stage: Stage) -> None:
    job = desire(stage)
    cancel(stage)
    task = fetch(stage)
    assert (task["lifecycle"], task["failed"]) == ("COMPLETED", True)
    assert task["failure_reason"] == "task was cancelled"
    stage.cell()
    stage.place()
    assert stage.attempts(job) == []


def test_cancelled_running_task_is_stopped(stage: Stage) -> None:
    cell = stage.cell()
    attempt = running(stage)
    cancel(stage)
    task = fetch(stage)
    assert (task["lifecycle"], task["failure_reason"]) == ("COMPLETED", "task was cancelled")
    assert (task["cell_id"], task["stopping"]) == ("cell-1", True)
    assert cell.stop_orders() == [str(attempt.uid)]
    stage.confirm(attempt)
    assert fetch(stage)["stopping"] is False
    stage.check()


def test_completed_task_cannot_be_cancelled(stage: Stage) -> None:
    stage.cell()
    completed(stage)
    with pytest.raises(Conflict, match="has ended already"):
        cancel(stage)
    assert fetch(stage)["failed"] is False


def test_unsatisfiable_task_is_refused(stage: Stage) -> None:
    stage.cell(cpu=1000)
    with pytest.raises(InvalidSpec) as refused:
        desire(stage, resources={"cpu": 2})
    assert [fault.field for fault in refused.value.faults] == ["definition.resources.cpu"]


def test_task_without_room_has_a_reason_and_times_out(stage: Stage) -> None:
    stage.cell(cpu=1000)
    running(stage, "first", resources={"cpu": 0.9})
    desire(stage, resources={"cpu": 0.5})
    stage.place()
    assert "lacks 0.4 of 0.5 cores" in fetch(stage)["pending_reason"]["text"]
    stage.wait(1799)
    stage.place()
    stage.converge()
    assert lifecycle(stage) == "PENDING"
    stage.wait(2)
    stage.place()
    stage.converge()
    task = fetch(stage)
    assert (task["state"], task["lifecycle"], task["failed"]) == (
        "UNSCHEDULABLE",
        "COMPLETED",
        True,
    )
    assert task["failure_reason"] == "not started within time limit"


def test_pool_sets_the_scheduling_timeout(stage: Stage) -> None:
    stage.policy(pending_timeout_seconds=60)
    desire(stage)
    stage.wait(61)
    stage.place()
    stage.converge()
    assert fetch(stage)["failure_reason"] == "not started within time limit"


def test_pool_timeout_applies_to_a_waiting_task(stage: Stage) -> None:
    desire(stage)
    stage.policy(pending_timeout_seconds=60)
    stage.wait(61)
    stage.place()
    stage.converge()
    assert fetch(stage)["failure_reason"] == "not started within time limit"


def test_removed_pool_timeout_restores_the_default_half_hour(stage: Stage) -> None:
    stage.policy(pending_timeout_seconds=60)
    desire(stage)
    stage.policy(pending_timeout_seconds=None)
    stage.wait(1_790)
    stage.place()
    stage.converge()
    assert fetch(stage)["state"] == "PENDING"
    stage.wait(11)
    stage.place()
    stage.converge()
    assert fetch(stage)["failure_reason"] == "not started within time limit"


def test_task_waits_while_placement_is_down(stage: Stage) -> None:
    job = desire(stage)
    stage.cell()
    stage.wait(2_000)
    stage.converge()
    assert lifecycle(stage) == "PENDING"
    stage.place()
    stage.start(stage.last(job))
    assert lifecycle(stage) == "RUNNING"


def test_task_of_a_lost_cell_fails_and_is_not_retried(stage: Stage) -> None:
    cell = stage.cell()
    job = Job.objects.get(pk=running(stage).job_id)
    stage.cell("another")
    stage.lose(cell)
    task = fetch(stage)
    assert (task["state"], task["failed"], task["cell_id"]) == ("WORKER_FAILED", True, "cell-1")
    assert task["failure_reason"] == "cell disappeared before completion"
    stage.wait(600, cell)
    stage.place()
    assert len(stage.attempts(job)) == 1
    stage.check()


def test_evacuation_moves_only_tasks_that_never_ran(stage: Stage) -> None:
    stage.cell()
    ran, waited = running(stage, "ran"), desire(stage, "waited")
    stage.place()
    stage.end(stage.last(waited), S.PREEMPTED, never_created=True)
    stage.end(ran, S.PREEMPTED)
    assert (lifecycle(stage, "ran"), lifecycle(stage, "waited")) == ("COMPLETED", "PENDING")
    text = "moved away because its cell is being drained"
    assert fetch(stage, "ran")["failure_reason"] == text
    stage.cell("another")
    stage.wait(60)
    stage.place()
    assert stage.states(waited) == ["ASSIGNED"]
    assert stage.states(Job.objects.get(pk=ran.job_id)) == ["PREEMPTED"]


def test_drained_cell_keeps_at_most_once_tasks_until_they_end(stage: Stage) -> None:
    cell = stage.cell()
    once, often = running(stage, "once"), running(stage, "often", delivery="at_least_once")
    drain_cell(name="cell-1", actor="me", now=stage.now(), deadline_seconds=10)
    desire(stage, "later")
    stage.wait(1_200)
    stage.place()
    stage.converge()
    assert (lifecycle(stage, "once"), lifecycle(stage, "often")) == ("RUNNING", "PENDING")
    assert cell.stop_orders() == [str(often.uid)]
    assert lifecycle(stage, "later") == "PENDING"
    stage.succeed(once)
    assert (fetch(stage, "once")["failed"], fetch(stage, "once")["cell_id"]) == (False, "cell-1")
    stage.check()


@pytest.mark.parametrize("first", ["the cell", "convergence"])
def test_first_of_cell_report_and_cell_loss_is_final(stage: Stage, first: str) -> None:
    cell = stage.cell()
    attempt = running(stage)
    if first == "the cell":
        stage.succeed(attempt)
        stage.lose(cell)
        assert (fetch(stage)["state"], fetch(stage)["failed"]) == ("SUCCEEDED", False)
    else:
        stage.lose(cell)
        stage.succeed(attempt)
        assert (fetch(stage)["state"], fetch(stage)["result"]) == ("WORKER_FAILED", None)
    stage.settle()
    stage.check()
