"""Preemption on real rows: victims, the owner of the freed place, and the charges."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import User

from controlplane import clock
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.placement.evict import evict
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import TaskState as S
from controlplane.domain.placement.preemption.candidates import PreemptionRequest
from controlplane.domain.placement.preemption.preempt import Eviction
from controlplane.models import Attempt, Job, Pool, Quota, Shape, Task, TaskGroup, Transition
from controlplane.queries.integrity.invariants import check_all
from controlplane.queries.placement.snapshot import load_pass_facts, load_waiting_shapes
from tests.integration.loop.conftest import FakeCell, Loop


def start(cell: FakeCell, *attempts: Attempt) -> None:
    cell.report(*[AttemptReport(str(attempt.uid), 0, S.RUNNING) for attempt in attempts])


def confirm(cell: FakeCell, attempt: Attempt) -> None:
    attempt.refresh_from_db()
    cell.report(AttemptReport(str(attempt.uid), 0, S.KILLED, gone=True))


def running(loop: Loop, cell: FakeCell, **body: object) -> Job:
    job = loop.submit(**body)
    loop.place()
    start(cell, *Attempt.objects.filter(job=job))
    return job


def test_batch_is_preempted_for_production_and_requeued(loop: Loop) -> None:
    cell = loop.cell(cpu=1000)
    batch = running(loop, cell, band="batch")
    urgent = loop.submit(band="production")
    loop.place()
    # The victim is stopped; its room is not free before its cell reports that it has gone.
    (victim,) = loop.attempts(batch)
    assert (loop.states(batch), loop.states(urgent)) == (["PENDING"], ["PENDING"])
    assert (victim.state, victim.released_at) == (S.PREEMPTED, None)
    assert cell.stop_orders() == [str(victim.uid)]
    assert Task.objects.get(job=urgent).nominated_cell_id == victim.cell_id
    loop.place()
    assert loop.states(urgent) == ["PENDING"]
    # Once it has gone the place is the preemptor's, whatever else waits.
    other = loop.submit(band="interactive")
    confirm(cell, victim)
    loop.place()
    assert (loop.states(urgent), loop.states(other)) == (["ASSIGNED"], ["PENDING"])
    assert Task.objects.get(job=urgent).nominated_cell_id is None
    (attempt,) = loop.attempts(urgent)
    cell.end(attempt, S.SUCCEEDED, exit_code=0)
    loop.place()
    cell.end(loop.attempts(other)[0], S.SUCCEEDED, exit_code=0)
    loop.place()
    task = Task.objects.get(job=batch)
    assert (task.state, task.preemption_count, task.attempt_number) == (S.ASSIGNED, 1, 2)
    (transition,) = Transition.objects.filter(job_id=batch.pk, reason="preempted")
    assert (transition.message, transition.actor) == (
        f"made room for job {urgent.pk} (production)",
        "placement",
    )
    assert check_all() == []


def test_cancelled_job_evicts_no_task(loop: Loop) -> None:
    cell = loop.cell(cpu=1000)
    batch, urgent = running(loop, cell, band="batch"), loop.submit(band="production")
    [waiting] = load_waiting_shapes(clock.now())
    [victim], group = loop.attempts(batch), TaskGroup.objects.get(job=urgent)
    need = PreemptionRequest(waiting.shapes[0], group.pk, urgent.pk, 1, ())
    until = clock.now() + timedelta(minutes=1)
    eviction = Eviction(need, (group.pk,), (victim.cell_id,), (1,), (victim.task_id,), until)
    cancel_job(job_id=urgent.pk, reason="", force=False, actor="ann", now=clock.now())
    assert evict([eviction], now=clock.now()) == 0
    assert (loop.states(batch), loop.states(urgent)) == (["RUNNING"], ["KILLED"])


def test_eviction_before_the_start_is_not_charged(loop: Loop) -> None:
    loop.cell(cpu=1000)
    batch = loop.submit(band="batch", retries={"preemption": 0})
    loop.place()
    loop.submit(band="production")
    loop.place()
    task = Task.objects.get(job=batch)
    assert (task.state, task.preemption_count) == (S.PENDING, 0)


def test_eviction_without_preemption_budget_ends_the_task(loop: Loop) -> None:
    cell = loop.cell(cpu=1000)
    batch = running(loop, cell, band="batch", retries={"preemption": 0})
    loop.submit(band="interactive")
    loop.place()
    assert loop.states(batch) == ["PREEMPTED"]
    assert loop.state(batch) == "WORKER_FAILED"


def test_no_preemption_within_a_band_or_for_misfits_or_when_disabled(loop: Loop) -> None:
    cell = loop.cell(cpu=1000)
    first = running(loop, cell, band="interactive")
    loop.submit(band="interactive")
    loop.submit(band="production", resources={"cpu": 2, "memory": "64Mi"}, allow_unsatisfiable=True)
    loop.place()
    assert loop.states(first) == ["RUNNING"]
    Pool.objects.update(preemption=False)
    loop.submit(band="production")
    loop.place()
    assert loop.states(first) == ["RUNNING"]


def test_preemptor_evicts_victims_only_once(loop: Loop) -> None:
    cell = loop.cell(cpu=4000)
    batch = running(loop, cell, band="batch", replicas=4)
    loop.submit(band="production", replicas=2)
    for _ in range(3):
        loop.place()
    assert sorted(loop.states(batch)) == ["PENDING", "PENDING", "RUNNING", "RUNNING"]


def test_no_reservation_is_made_for_a_task_in_back_off(loop: Loop) -> None:
    cell = loop.cell(cpu=2000)
    urgent = running(loop, cell, band="production", replicas=2, retries={"failure": 3})
    first, second = loop.tasks(urgent)
    for attempt in loop.attempts(urgent):
        cell.end(attempt, S.FAILED, exit_code=1)
    Task.objects.filter(pk=first.pk).update(not_before=clock.now() + timedelta(minutes=5))
    running(loop, cell, band="batch", replicas=2)
    Task.objects.filter(pk=second.pk).update(not_before=None)
    loop.place()
    assert [task.nominated_cell_id is not None for task in loop.tasks(urgent)] == [False, True]


def test_gang_is_evicted_whole_and_preempts_for_all_members(loop: Loop) -> None:
    cell = loop.cell(cpu=4000)
    victims = running(loop, cell, band="batch", replicas=3, coscheduled=True)
    loop.submit(band="production", replicas=2, coscheduled=True)
    loop.place()
    assert loop.states(victims) == ["PENDING"] * 3
    assert Task.objects.filter(nominated_cell_id__isnull=False, state=S.PENDING).count() >= 2
    for attempt in loop.attempts(victims):
        confirm(cell, attempt)
    loop.place()
    assert check_all() == []
    assert set(loop.states(Job.objects.latest("id"))) == {"ASSIGNED"}


def test_starving_task_gets_a_reservation_small_tasks_cannot_take(loop: Loop) -> None:
    cell = loop.cell(cpu=2000)
    small = [running(loop, cell), running(loop, cell)]
    large = loop.submit(resources={"cpu": 2, "memory": "64Mi"})
    old = clock.now() - timedelta(seconds=400)
    TaskGroup.objects.filter(job=large).update(startable_at=old)
    Task.objects.filter(job=large).update(updated_at=old)
    loop.place()
    assert Task.objects.get(job=large).nominated_cell_id is not None
    cell.end(loop.attempts(small[0])[0], S.SUCCEEDED, exit_code=0)
    late = loop.submit()
    loop.place()
    assert (loop.states(late), loop.states(large)) == (["PENDING"], ["PENDING"])
    cell.end(loop.attempts(small[1])[0], S.SUCCEEDED, exit_code=0)
    loop.place()
    assert (loop.states(late), loop.states(large)) == (["PENDING"], ["ASSIGNED"])


def test_user_blocked_by_quota_does_not_hide_other_users(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(load_pass_facts.__kwdefaults__, "limit", 2)
    cell = loop.cell(cpu=9000)
    Quota.objects.create(user=loop.owner, running_jobs=1)
    first = running(loop, cell, retries={"failure": 1}, replicas=2)
    held = [loop.submit() for _ in range(3)]
    loop.owner = User.objects.create(username="other")
    late = loop.submit()
    loop.place()
    assert loop.states(late) == ["ASSIGNED"]
    assert {state for job in held for state in loop.states(job)} == {"PENDING"}
    # What runs already goes on, and the others still have a pending reason.
    cell.end(loop.attempts(first)[0], S.FAILED, exit_code=1)
    Task.objects.update(not_before=None)
    loop.place()
    assert sorted(loop.states(first)) == ["ASSIGNED", "RUNNING"]
    shape = Shape.objects.get(pk=held[0].groups.get().shape_id)
    assert shape.pending_reason["text"] == (
        "quota of user owner: 1 running jobs + 1 requested > 1 allowed"
    )


def test_expired_reservation_is_released(loop: Loop) -> None:
    cell = loop.cell(cpu=1000)
    running(loop, cell, band="batch")
    loop.submit(band="production")
    loop.place()
    (task,) = Task.objects.filter(nominated_cell_id__isnull=False)
    Task.objects.update(nominated_until=clock.now())
    Pool.objects.update(preemption=False)
    loop.place()
    task.refresh_from_db()
    assert task.nominated_cell_id is None
