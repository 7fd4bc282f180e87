"""Gangs: whole or absent at the start, together when a member is lost, ended when one fails."""

from typing import Any

from controlplane import clock
from controlplane.commands.cells.operate import cordon_cell, uncordon_cell
from controlplane.contract.states import TaskState as S
from controlplane.models import Attempt, Job
from controlplane.queries.integrity.invariants import check_all
from controlplane.queries.views.tasks import get_task
from tests.integration.loop.conftest import Loop


def gang(loop: Loop, replicas: int = 3, **more: Any) -> Job:
    return loop.submit(coscheduled=True, replicas=replicas, **more)


def test_gang_that_does_not_fit_stays_pending_with_a_reason(loop: Loop) -> None:
    loop.cell(cpu=2000)
    job = gang(loop)
    loop.place()
    assert loop.states(job) == ["PENDING"] * 3
    reason = job.groups.get().pending_reason
    assert (reason["code"], reason["need"], reason["have"]) == ("waiting_for_gang", 3, 2)
    small = loop.submit(replicas=2)
    loop.place()
    assert loop.states(small) == ["ASSIGNED"] * 2
    loop.cell("cell-2", cpu=3000)
    loop.place()
    assert loop.states(job) == ["ASSIGNED"] * 3
    assert check_all() == []


def test_gang_starts_with_its_minimum(loop: Loop) -> None:
    loop.cell(cpu=2000)
    job = gang(loop, min_available=2)
    loop.place()
    assert sorted(loop.states(job)) == ["ASSIGNED", "ASSIGNED", "PENDING"]


def test_lost_member_requeues_the_gang_and_only_it_is_charged(loop: Loop) -> None:
    cell = loop.cell()
    job = gang(loop)
    loop.place()
    first, *others = loop.attempts(job)
    cell.end(first, S.WORKER_FAILED, started_at=1.0, reason="vanished")
    assert Job.objects.get(pk=job.pk).is_requeuing
    loop.converge()
    assert loop.states(job) == ["PENDING"] * 3
    assert [task.preemption_count for task in loop.tasks(job)] == [1, 0, 0]
    assert set(cell.stop_orders()) == {str(attempt.uid) for attempt in others}
    loop.place()
    assert loop.states(job) == ["PENDING"] * 3  # their containers are not confirmed gone
    for attempt in others:
        cell.end(attempt, S.KILLED, reason="stopped")
    loop.place()
    assert loop.states(job) == ["ASSIGNED"] * 3
    assert check_all() == []


def test_lost_member_is_requeued_alone_while_the_minimum_is_met(loop: Loop) -> None:
    cell = loop.cell()
    job = gang(loop, min_available=2)
    loop.place()
    cell.end(loop.attempts(job)[0], S.WORKER_FAILED, started_at=1.0, reason="vanished")
    loop.converge()
    assert sorted(loop.states(job)) == ["ASSIGNED", "ASSIGNED", "PENDING"]
    loop.place()
    assert loop.states(job) == ["ASSIGNED"] * 3


def test_finally_failed_member_ends_its_siblings_as_worker_failed(loop: Loop) -> None:
    cell = loop.cell()
    job = gang(loop)
    loop.place()
    first, *others = loop.attempts(job)
    cell.end(first, S.FAILED, exit_code=1, started_at=1.0)
    loop.converge()
    assert loop.states(job) == ["FAILED", "WORKER_FAILED", "WORKER_FAILED"]
    assert loop.state(job) == "FAILED"
    assert [task.preemption_count for task in loop.tasks(job)] == [0, 101, 101]
    assert [a.charge for a in Attempt.objects.filter(job=job).order_by("task_id")] == [1, 101, 101]
    assert set(cell.stop_orders()) == {str(attempt.uid) for attempt in others}
    assert check_all() == []


def test_gang_with_a_member_lost_for_good_ends_as_worker_failed(loop: Loop) -> None:
    cell = loop.cell()
    job = gang(loop, retries={"preemption": 0})
    loop.place()
    cell.end(loop.attempts(job)[0], S.WORKER_FAILED, started_at=1.0, reason="vanished")
    loop.converge()
    assert loop.states(job) == ["WORKER_FAILED"] * 3
    assert loop.state(job) == "WORKER_FAILED"
    assert check_all() == []


def test_pending_reason_of_a_gang_is_updated_when_every_cell_closes(loop: Loop) -> None:
    loop.cell(cpu=2000)
    job = gang(loop)
    loop.place()
    task_id = loop.tasks(job)[0].pk
    assert get_task(task_id, now=clock.now())["pending_reason"]["code"] == "waiting_for_gang"
    cordon_cell(name="cell-1", actor="me", now=clock.now())
    loop.place()
    text = get_task(task_id, now=clock.now())["pending_reason"]["text"]
    assert text == "the pool has no ready cell (1 CORDONED)"
    uncordon_cell(name="cell-1", actor="me", now=clock.now())
    loop.place()
    assert get_task(task_id, now=clock.now())["pending_reason"]["code"] == "waiting_for_gang"
