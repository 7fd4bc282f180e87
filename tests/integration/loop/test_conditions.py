"""What is written rests on what was decided from: what changed between the two is left alone."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection, transaction

from controlplane import clock
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.jobs.one_offs import claim_task, claim_tasks, delete_resolved_task
from controlplane.commands.placement.allocate import PoolLimits, carry_out
from controlplane.commands.placement.evict import evict
from controlplane.commands.state.apply import apply, hide_jobs, place_tasks
from controlplane.commands.state.apply_sql import ADD_JOB_CALLBACKS, ADD_TASK_CALLBACKS
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.contract.states import TaskState as S
from controlplane.domain.errors import Conflict
from controlplane.domain.jobs.submission import JobsRefused
from controlplane.domain.placement.model.policy import PoolPolicy
from controlplane.domain.placement.preemption.candidates import PreemptionRequest
from controlplane.domain.placement.preemption.preempt import Eviction
from controlplane.domain.state.effects import ChangeTask, Effects, Placement, PlaceTasks
from controlplane.domain.state.states import Reason, ReleaseKind
from controlplane.domain.state.task_changes import ChangeCause, change_task, release_task
from controlplane.domain.state.transitions import Event
from controlplane.models import Callback, Cell, Job, OneOff, Pool, Quota, Task, TaskGroup
from controlplane.queries.locks import lock_jobs
from controlplane.queries.placement.snapshot import load_waiting_shapes
from controlplane.queries.sql import execute
from controlplane.queries.task_facts import load_facts_of_tasks
from tests.integration.callbacks.conftest import until_it_waits
from tests.integration.loop.conftest import Loop


def plan(job: Job, cell: str = "cell-1", count: int = 1) -> PlaceTasks:
    """What placement decided: so many of the job's waiting tasks go to the cell."""
    group, place = TaskGroup.objects.get(job=job), Cell.objects.get(name=cell)
    one = ((job.pk,), (group.pk,), (group.shape_id,), (place.pk,), (count,))
    return PlaceTasks(*one, (None,), (None,), (None,))


def write(
    plan: PlaceTasks, *, has_quotas: bool = False, tokens: Mapping[str, int] | None = None
) -> int:
    """Carry a plan out; how many tasks were placed."""
    limits = PoolLimits(Pool.objects.get().pk, PoolPolicy(tokens=tokens or {}), has_quotas)
    return carry_out(plan, limits=limits, now=clock.now(), start_seconds=60.0)


def placement_of(task: Task) -> Placement:
    """A new attempt for the task, on the first cell."""
    cell = Cell.objects.earliest("id")
    return Placement(
        uuid4(),
        task.pk,
        task.group_id,
        task.job_id,
        cell.pk,
        cell.incarnation,
        task.attempt_number + 1,
        task.index,
    )


# ------------------------------------------------------------------ changes of tasks


def test_change_for_an_earlier_attempt_does_not_apply_to_the_next(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit(retries={"system": 3})
    loop.place()
    [task], [first] = loop.tasks(job), loop.attempts(job)
    [facts] = load_facts_of_tasks([task.pk])
    late = change_task(facts, Event.CELL_LOST, ChangeCause(Reason.CELL_LOST), now=clock.now())
    cell.end(first, S.WORKER_FAILED, reason="refused")
    Task.objects.update(not_before=None, avoid_cell_ids=None)
    loop.place()
    task.refresh_from_db()
    assert (task.state, task.attempt_number) == (S.ASSIGNED, 2)  # the state is as it was
    with transaction.atomic():
        applied = apply(Effects([late]), jobs=lock_jobs([job.pk]), now=clock.now(), actor="x")
    assert (applied.changed, applied.stale) == (0, 1)
    before = task.attempt_uid
    task.refresh_from_db()
    assert (task.state, task.attempt_uid, task.attempt_open) == (S.ASSIGNED, before, True)


def test_stale_change_of_an_ended_task_is_ignored(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit()
    loop.place()
    [task], [attempt] = loop.tasks(job), loop.attempts(job)
    [facts] = load_facts_of_tasks([task.pk])
    late = change_task(facts, Event.CELL_LOST, ChangeCause(Reason.CELL_LOST), now=clock.now())
    cell.end(attempt, S.SUCCEEDED, exit_code=0)
    with transaction.atomic():
        applied = apply(Effects([late]), jobs=lock_jobs([job.pk]), now=clock.now(), actor="x")
    assert (applied.changed, applied.stale) == (0, 1)
    assert (loop.states(job), loop.state(job)) == (["SUCCEEDED"], "SUCCEEDED")
    attempt.refresh_from_db()
    assert attempt.state == S.SUCCEEDED


def test_second_release_does_not_change_a_released_attempt(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit()
    loop.place()
    [task], [attempt] = loop.tasks(job), loop.attempts(job)
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    [facts] = load_facts_of_tasks([task.pk])
    operator, by_operator = ReleaseKind.OPERATOR, Reason.RELEASED_BY_OPERATOR
    late = release_task(facts, operator, by_operator, now=clock.now())
    cell.end(attempt, S.KILLED)
    attempt.refresh_from_db()
    released = (attempt.released_at, attempt.release_kind)
    assert released[1] == "confirmed"
    with transaction.atomic():
        apply(Effects([late]), jobs=lock_jobs([job.pk]), now=clock.now(), actor="x")
    attempt.refresh_from_db()
    assert (attempt.released_at, attempt.release_kind) == released


def test_only_pending_tasks_without_an_open_attempt_are_placed(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit(replicas=4, retries={"preemption": 3})
    loop.place()
    held, _, free, succeeded = loop.attempts(job)
    for attempt in (held, free):
        cell.end(attempt, S.WORKER_FAILED, reason="refused")
    cell.end(succeeded, S.SUCCEEDED, exit_code=0)
    Task.objects.update(not_before=None, avoid_cell_ids=None)
    tasks = loop.tasks(job)
    states = [S.PENDING, S.ASSIGNED, S.PENDING, S.SUCCEEDED]
    assert [task.state for task in tasks] == states
    # As a task whose earlier container is not confirmed gone.
    Task.objects.filter(pk=tasks[0].pk).update(attempt_open=True)
    now = clock.now()
    with transaction.atomic():
        done = place_tasks(
            [placement_of(task) for task in tasks],
            jobs=lock_jobs([job.pk]),
            now=now,
            start_before=now + timedelta(minutes=1),
            actor="x",
        )
    assert [item.task_id for item in done] == [tasks[2].pk]
    assert [attempt.number for attempt in loop.attempts(job)] == [1, 1, 1, 2, 1]


# ------------------------------------------------------------------ plans


def ending(loop: Loop) -> Job:
    """A job that must end and has a task that waits still: convergence has not come to it."""
    cell = loop.cell(cpu=1000)
    job = loop.submit(replicas=2, max_task_failures=0)
    loop.place()
    [attempt] = loop.attempts(job)
    cell.end(attempt, S.FAILED, exit_code=1)
    job.refresh_from_db()
    assert (job.ending_as, sorted(loop.states(job))) == (S.FAILED, ["FAILED", "PENDING"])
    return job


def test_stale_plan_places_no_task_of_an_ending_job(loop: Loop) -> None:
    job = ending(loop)
    assert write(plan(job)) == 0
    assert len(loop.attempts(job)) == 1
    assert write(plan(loop.submit())) == 1  # there was room


def test_stale_plan_places_no_task_of_a_cancelled_job(loop: Loop) -> None:
    loop.cell()
    job = loop.submit(replicas=2)
    older = plan(job, count=2)
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    assert write(older) == 0
    assert loop.states(job) == ["KILLED"] * 2


def test_stale_plan_places_no_member_of_a_gang_being_requeued(loop: Loop) -> None:
    """With it the minimum would be met again; the others are about to be stopped."""
    cell = loop.cell()
    job = loop.submit(coscheduled=True, replicas=3)
    loop.place()
    cell.end(loop.attempts(job)[0], S.WORKER_FAILED, started_at=1.0, reason="vanished")
    Task.objects.update(not_before=None, avoid_cell_ids=None, prefer_cell_id=None)
    job.refresh_from_db()
    assert job.is_requeuing
    assert loop.states(job) == ["PENDING", "ASSIGNED", "ASSIGNED"]
    assert write(plan(job)) == 0
    assert loop.states(job) == ["PENDING", "ASSIGNED", "ASSIGNED"]


def test_task_with_an_open_attempt_takes_no_slot_of_a_plan(
    loop: Loop,
) -> None:
    loop.cell()
    job = loop.submit(replicas=2)
    first, second = loop.tasks(job)
    Task.objects.filter(pk=first.pk).update(attempt_open=True)
    assert write(plan(job)) == 1
    assert [attempt.task_id for attempt in loop.attempts(job)] == [second.pk]


def test_stale_plan_places_no_task_in_back_off(loop: Loop) -> None:
    loop.cell()
    job = loop.submit()
    Task.objects.update(not_before=clock.now() + timedelta(minutes=1))
    assert write(plan(job)) == 0


@pytest.mark.parametrize("state", ["CORDONED", "DRAINING", "QUARANTINED", "LOST"])
def test_nothing_is_placed_on_a_cell_that_closed_after_the_plan(loop: Loop, state: str) -> None:
    loop.cell()
    job = loop.submit()
    Cell.objects.update(state=state)
    assert write(plan(job)) == 0


def test_plan_larger_than_the_free_capacity_is_cut_to_it(loop: Loop) -> None:
    loop.cell(cpu=2000)
    job = loop.submit(replicas=3)
    assert write(plan(job, count=3)) == 2


def test_nothing_is_evicted_for_an_ending_job(loop: Loop) -> None:
    job = ending(loop)
    batch = loop.submit(band="batch")
    loop.place()
    [victim], group = loop.attempts(batch), TaskGroup.objects.get(job=job)
    [shape] = [
        shape
        for waiting in load_waiting_shapes(clock.now())
        for shape in waiting.shapes
        if shape.shape_id == group.shape_id
    ]
    need = PreemptionRequest(shape, group.pk, job.pk, 1, ())
    until = clock.now() + timedelta(minutes=1)
    eviction = Eviction(need, (group.pk,), (victim.cell_id,), (1,), (victim.task_id,), until)
    assert evict([eviction], now=clock.now()) == 0
    victim.refresh_from_db()
    assert (victim.state, victim.stop_reason) == (S.ASSIGNED, "")


# ------------------------------------------------------------------ jobs


def test_only_ended_and_visible_jobs_are_hidden(loop: Loop) -> None:
    running, ended, hidden = (loop.submit() for _ in range(3))
    for job in (ended, hidden):
        cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    Job.objects.filter(pk=hidden.pk).update(deleted_at=clock.now())
    ids = [running.pk, ended.pk, hidden.pk]

    def hide() -> list[int]:
        lock_jobs(ids)
        return hide_jobs(ids, actor="me", why="by request", now=clock.now())

    assert run_in_transaction(hide) == [ended.pk]
    running.refresh_from_db()
    assert running.deleted_at is None


@pytest.mark.parametrize("on", ["task", "job"])
@pytest.mark.parametrize("state", ["delivered", "abandoned"])
def test_end_written_twice_adds_no_second_callback(loop: Loop, on: str, state: str) -> None:
    job = loop.submit(callback={"url": "http://receiver.example/", "on": on})
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    loop.converge()
    now = clock.now()
    assert Callback.objects.filter(job=job).update(state=state, ended_at=now) == 1
    statements = {"task": ADD_TASK_CALLBACKS, "job": ADD_JOB_CALLBACKS}
    ids = [task.pk for task in loop.tasks(job)] if on == "task" else [job.pk]
    assert execute(statements[on], [now, now, now, ids]) == 0
    callback = Callback.objects.get(job=job)
    assert (callback.state, callback.ended_at) == (state, now)


def one_off(loop: Loop, job: Job) -> Task:
    """The job's task as a one-off task."""
    [task] = loop.tasks(job)
    OneOff.objects.create(
        task=task, job=job, project=job.project, guid=f"guid-{job.pk}", domain="d"
    )
    return task


def test_only_a_task_that_has_completed_is_claimed_for_its_callback(loop: Loop) -> None:
    running, done = (one_off(loop, loop.submit()) for _ in range(2))
    cancel_job(job_id=done.job_id, reason="", force=False, actor="me", now=clock.now())
    found = claim_tasks(task_ids=[running.pk, done.pk], by="callback", now=clock.now())
    assert (set(found.claims), set(found.refusals)) == ({done.pk}, {running.pk})
    assert "has not completed" in found.refusals[running.pk]


def test_expired_claim_does_not_delete_the_task(loop: Loop) -> None:
    task = one_off(loop, loop.submit())
    cancel_job(job_id=task.job_id, reason="", force=False, actor="me", now=clock.now())
    claim = claim_task(task_id=task.pk, by="me", now=clock.now() - timedelta(minutes=10))
    with pytest.raises(Conflict, match="its claim has expired"):
        delete_resolved_task(task_id=task.pk, claim=claim, actor="me", why="told", now=clock.now())
    assert Job.objects.get().deleted_at is None


# ------------------------------------------------------------------ two at once


def one_after_the_other(first: Callable[[], int], second: Callable[[], int]) -> tuple[int, int]:
    """What both come to, the second begun when the first was done and not committed."""

    def work() -> int:
        try:
            return second()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as thread:
        with transaction.atomic():
            done = first()
            late = thread.submit(work)
            until_it_waits(late)
        return done, late.result(timeout=20)


def test_concurrent_task_ends_of_one_job_are_both_counted(loop: Loop) -> None:
    """The second change waits for the job's lock and counts what the first has left."""
    job = loop.submit(replicas=2)
    first, second = (
        change_task(facts, Event.KILLED, ChangeCause(Reason.CANCELLED), now=clock.now())
        for facts in load_facts_of_tasks([task.pk for task in loop.tasks(job)])
    )

    def end(change: ChangeTask) -> int:
        jobs = lock_jobs([job.pk])
        return apply(Effects([change]), jobs=jobs, now=clock.now(), actor="x").changed

    def end_second() -> int:
        with transaction.atomic():
            return end(second)

    assert one_after_the_other(lambda: end(first), end_second) == (1, 1)
    counts = TaskGroup.objects.get(job=job).counts
    assert (counts[S.KILLED], counts[S.PENDING]) == (2, 0)
    assert loop.state(job) == "KILLED"


def test_concurrent_plans_stay_within_a_quota(loop: Loop) -> None:
    """Each alone is within it: they place other jobs of one user, on other cells."""
    for number in (1, 2):
        loop.cell(f"cell-{number}")
    plans = [plan(loop.submit(), f"cell-{number}") for number in (1, 2)]
    Quota.objects.create(user=loop.owner, running_tasks=1)
    done = one_after_the_other(
        lambda: write(plans[0], has_quotas=True), lambda: write(plans[1], has_quotas=True)
    )
    assert done == (1, 0)


def test_concurrent_plans_stay_within_a_default_quota(loop: Loop) -> None:
    for number in (1, 2):
        loop.cell(f"cell-{number}")
    plans = [plan(loop.submit(), f"cell-{number}") for number in (1, 2)]
    Quota.objects.filter(default_for="user").update(running_tasks=1)
    done = one_after_the_other(
        lambda: write(plans[0], has_quotas=True), lambda: write(plans[1], has_quotas=True)
    )
    assert done == (1, 0)


def test_concurrent_plans_stay_within_the_tokens_of_a_pool(loop: Loop) -> None:
    for number in (1, 2):
        loop.cell(f"cell-{number}")
    tokens = {"licence": 1}
    Pool.objects.update(tokens=tokens)
    wanted = {"cpu": 1, "memory": "64Mi", "licence": 1}
    plans = [plan(loop.submit(resources=wanted), f"cell-{number}") for number in (1, 2)]
    done = one_after_the_other(
        lambda: write(plans[0], tokens=tokens), lambda: write(plans[1], tokens=tokens)
    )
    assert done == (1, 0)


def test_concurrent_plans_stay_within_the_capacity_of_a_cell(loop: Loop) -> None:
    loop.cell(cpu=1000)
    plans = [plan(loop.submit()) for _ in range(2)]
    assert one_after_the_other(lambda: write(plans[0]), lambda: write(plans[1])) == (1, 0)


def test_concurrent_plans_place_a_task_once(loop: Loop) -> None:
    loop.cell()
    job = loop.submit()
    assert one_after_the_other(lambda: write(plan(job)), lambda: write(plan(job))) == (1, 0)
    assert len(loop.attempts(job)) == 1


def test_concurrent_submissions_stay_within_the_user_limit(loop: Loop, settings: Any) -> None:
    settings.CELLRUN = settings.CELLRUN.model_copy(update={"max_unfinished_tasks_per_user": 3})

    def submit() -> int:
        try:
            return loop.submit(replicas=2).pk and 1
        except JobsRefused:
            return 0

    assert one_after_the_other(submit, submit) == (1, 0)
    assert Task.objects.count() == 2
