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
from tests.scenarios.diego import cancel, completed, desire, lifecycle, listed, look, running
from tests.scenarios.stage import SMALL, Stage


def test_it_is_pending_then_running_then_completed(stage: Stage) -> None:
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
    assert look(stage)["failed"] is False
    stage.check()


ENDS: dict[str, Callable[[Stage, Attempt], None]] = {
    "SUCCEEDED": lambda stage, attempt: stage.succeed(attempt),
    "FAILED": lambda stage, attempt: stage.fail(attempt),
    "KILLED": lambda stage, attempt: cancel(stage),
    "WORKER_FAILED": lambda stage, attempt: stage.vanish(attempt),
    "PREEMPTED": lambda stage, attempt: stage.end(attempt, S.PREEMPTED),
}


@pytest.mark.parametrize("state", ENDS)
def test_whatever_ends_it_completes_it(stage: Stage, state: str) -> None:
    stage.cell()
    ENDS[state](stage, running(stage))
    task = look(stage)
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
def test_a_guid_is_taken_also_in_another_domain_and_for_the_same_task(
    stage: Stage, domain: str
) -> None:
    desire(stage)
    with pytest.raises(TaskGuidTaken, match="guid one belongs to task"):
        desire(stage, domain=domain)
    with pytest.raises(TaskGuidTaken):
        desire(stage.user("mallory"), domain=domain)
    assert (Job.objects.count(), OneOff.objects.count()) == (1, 1)


def test_tasks_are_listed_by_domain_by_cell_and_by_how_far_they_are(stage: Stage) -> None:
    stage.cell()
    completed(stage, "done")
    running(stage, "runs")
    desire(stage, "waits", "other")
    assert listed(stage) == ["waits", "runs", "done"]
    assert listed(stage, domain="build") == ["runs", "done"]
    assert listed(stage, cell="cell-1") == ["runs", "done"]
    assert listed(stage, lifecycles=[Lifecycle.COMPLETED]) == ["done"]
    assert listed(stage, lifecycles=[Lifecycle.PENDING], domain="build") == []


def test_cancelled_while_it_waits_it_has_failed_and_never_runs(stage: Stage) -> None:
    job = desire(stage)
    cancel(stage)
    task = look(stage)
    assert (task["lifecycle"], task["failed"]) == ("COMPLETED", True)
    assert task["failure_reason"] == "task was cancelled"
    stage.cell()
    stage.place()
    assert stage.attempts(job) == []


def test_cancelled_while_it_runs_it_is_stopped(stage: Stage) -> None:
    cell = stage.cell()
    attempt = running(stage)
    cancel(stage)
    task = look(stage)
    assert (task["lifecycle"], task["failure_reason"]) == ("COMPLETED", "task was cancelled")
    assert (task["cell_id"], task["stopping"]) == ("cell-1", True)
    assert cell.stop_orders() == [str(attempt.uid)]
    stage.confirm(attempt)
    assert look(stage)["stopping"] is False
    stage.check()


def test_what_has_completed_cannot_be_cancelled(stage: Stage) -> None:
    stage.cell()
    completed(stage)
    with pytest.raises(Conflict, match="has ended already"):
        cancel(stage)
    assert look(stage)["failed"] is False


def test_what_can_never_fit_is_refused_at_once(stage: Stage) -> None:
    stage.cell(cpu=1000)
    with pytest.raises(InvalidSpec) as refused:
        desire(stage, resources={"cpu": 2})
    assert [fault.field for fault in refused.value.faults] == ["definition.resources.cpu"]


def test_without_room_it_says_why_it_waits_and_fails_in_bounded_time(stage: Stage) -> None:
    stage.cell(cpu=1000)
    running(stage, "first", resources={"cpu": 0.9})
    desire(stage, resources={"cpu": 0.5})
    stage.place()
    assert "lacks 0.4 cores" in look(stage)["pending_reason"]["text"]
    stage.wait(1799)
    stage.place()
    stage.converge()
    assert lifecycle(stage) == "PENDING"
    stage.wait(2)
    stage.place()
    stage.converge()
    task = look(stage)
    assert (task["state"], task["lifecycle"], task["failed"]) == (
        "UNSCHEDULABLE",
        "COMPLETED",
        True,
    )
    assert task["failure_reason"] == "not started within time limit"


def test_a_pool_may_say_how_long_it_waits(stage: Stage) -> None:
    stage.policy(pending_timeout_seconds=60)
    desire(stage)
    stage.wait(61)
    stage.place()
    stage.converge()
    assert look(stage)["failure_reason"] == "not started within time limit"


def test_a_pool_may_say_so_while_it_waits(stage: Stage) -> None:
    desire(stage)
    stage.policy(pending_timeout_seconds=60)
    stage.wait(61)
    stage.place()
    stage.converge()
    assert look(stage)["failure_reason"] == "not started within time limit"


def test_a_pool_that_no_longer_says_so_leaves_it_half_an_hour(stage: Stage) -> None:
    stage.policy(pending_timeout_seconds=60)
    desire(stage)
    stage.policy(pending_timeout_seconds=None)
    stage.wait(1_790)
    stage.place()
    stage.converge()
    assert look(stage)["state"] == "PENDING"
    stage.wait(11)
    stage.place()
    stage.converge()
    assert look(stage)["failure_reason"] == "not started within time limit"


def test_while_nobody_places_it_waits_and_runs_once_somebody_does(stage: Stage) -> None:
    job = desire(stage)
    stage.cell()
    stage.wait(2_000)
    stage.converge()
    assert lifecycle(stage) == "PENDING"
    stage.place()
    stage.start(stage.last(job))
    assert lifecycle(stage) == "RUNNING"


def test_a_killed_cell_fails_it_and_it_never_runs_again(stage: Stage) -> None:
    cell = stage.cell()
    job = Job.objects.get(pk=running(stage).job_id)
    stage.cell("another")
    stage.lose(cell)
    task = look(stage)
    assert (task["state"], task["failed"], task["cell_id"]) == ("WORKER_FAILED", True, "cell-1")
    assert task["failure_reason"] == "cell disappeared before completion"
    stage.wait(600, cell)
    stage.place()
    assert len(stage.attempts(job)) == 1
    stage.check()


def test_an_evacuated_cell_moves_only_what_never_ran(stage: Stage) -> None:
    stage.cell()
    ran, waited = running(stage, "ran"), desire(stage, "waited")
    stage.place()
    stage.end(stage.last(waited), S.PREEMPTED, never_created=True)
    stage.end(ran, S.PREEMPTED)
    assert (lifecycle(stage, "ran"), lifecycle(stage, "waited")) == ("COMPLETED", "PENDING")
    told = "moved away because its cell is being drained"
    assert look(stage, "ran")["failure_reason"] == told
    stage.cell("another")
    stage.wait(60)
    stage.place()
    assert stage.states(waited) == ["ASSIGNED"]
    assert stage.states(Job.objects.get(pk=ran.job_id)) == ["PREEMPTED"]


def test_a_drained_cell_keeps_what_must_not_run_twice_until_it_ends(stage: Stage) -> None:
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
    assert (look(stage, "once")["failed"], look(stage, "once")["cell_id"]) == (False, "cell-1")
    stage.check()


@pytest.mark.parametrize("first", ["the cell", "convergence"])
def test_whichever_comes_first_its_cells_word_or_its_loss_stays(stage: Stage, first: str) -> None:
    cell = stage.cell()
    attempt = running(stage)
    if first == "the cell":
        stage.succeed(attempt)
        stage.lose(cell)
        assert (look(stage)["state"], look(stage)["failed"]) == ("SUCCEEDED", False)
    else:
        stage.lose(cell)
        stage.succeed(attempt)
        assert (look(stage)["state"], look(stage)["result"]) == ("WORKER_FAILED", None)
    stage.settle()
    stage.check()
