"""What has been kept for its time goes, unless something refers to it, and nothing else does."""

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.conf import settings
from django.db import connection
from django.test import override_settings

from controlplane import clock
from controlplane.commands.jobs.one_offs import claim_task
from controlplane.commands.jobs.rerun import retry_job
from controlplane.commands.retention import deletion, purge
from controlplane.commands.retention.deletion import delete_expired, delete_job
from controlplane.commands.retention.purge import purge_deleted
from controlplane.contract.states import TaskState as S
from controlplane.models import (
    Alert,
    Attempt,
    AuditLine,
    Callback,
    DeadLetter,
    Delivery,
    Job,
    JobDependency,
    OneOff,
    Task,
    TaskGroup,
    TickRun,
    TickState,
    Transition,
    Walk,
)
from controlplane.queries.convergence.deletion import list_expired_jobs
from controlplane.queries.integrity.invariants import check_all
from controlplane.queries.policy import load_policy
from controlplane.storage import folder as store
from controlplane.ticks import retention
from tests.integration.loop.conftest import FakeCell, Loop
from tests.integration.loop.deaths import at_statement, work_until_death

PAGE = 3
OF_JOBS = (Task, Attempt, Transition, TaskGroup, Callback, OneOff)


def forever() -> bool:
    return False


@pytest.fixture(autouse=True)
def own_root(tmp_path: Path) -> Iterator[None]:
    """Use an own artifact root, without the files of other tests."""
    with override_settings(CELLRUN=settings.CELLRUN.model_copy(update={"artifact_root": tmp_path})):
        yield


@pytest.fixture
def cell(loop: Loop, many_slots: None) -> FakeCell:
    return loop.cell(cpu=100_000, memory=1_000_000)


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "PAGE", PAGE)
    monkeypatch.setattr(deletion, "_PAGES_PER_RUN", 1)
    monkeypatch.setattr(purge, "PAGE", PAGE)
    monkeypatch.setattr(purge, "_HISTORY_PAGE", PAGE)


def ended(loop: Loop, cell: FakeCell, state: S = S.SUCCEEDED, **body: Any) -> Job:
    """A job that has ended and settled, whose time is over at once."""
    job = loop.submit(**{"ttl_seconds_after_finished": 0, **body})
    loop.place()
    for attempt in loop.attempts(job):
        cell.end(attempt, state, exit_code=0 if state is S.SUCCEEDED else 1, started_at=1.0)
    job.refresh_from_db()
    assert job.settled_at is not None
    return job


def expire() -> int:
    deleted, _ = delete_expired(now=clock.now(), is_over=forever)
    return deleted


def is_hidden(job: Job) -> bool:
    return Job.objects.get(pk=job.pk).deleted_at is not None


def left_of(*jobs: Job) -> dict[str, int]:
    """How many rows there are, of which kind; of callbacks' tries, all that there are."""
    ids = [job.pk for job in jobs]
    found = {"Job": Job.objects.filter(pk__in=ids).count(), "Delivery": Delivery.objects.count()}
    for model in OF_JOBS:
        found[model.__name__] = model._default_manager.filter(job_id__in=ids).count()
    return {name: count for name, count in found.items() if count}


def root() -> Path:
    folder: Path = settings.CELLRUN.artifact_root
    return folder


def call_back(job: Job, **columns: Any) -> Callback:
    now = clock.now()
    later = now + timedelta(days=1)
    columns = {"state": "waiting", "due_at": now, "give_up_at": later, "created_at": now, **columns}
    owner_id = job.owner_id
    return Callback.objects.create(
        job=job, owner_id=owner_id, url="http://x/", host="x:80", **columns
    )


def test_expired_job_is_deleted_and_a_younger_job_is_kept(loop: Loop, cell: FakeCell) -> None:
    old, young = ended(loop, cell), ended(loop, cell, ttl_seconds_after_finished=60)
    counts = loop.converge()
    assert (counts["expired"], counts["purged"]) == (1, 1)
    assert left_of(old) == {}
    assert not is_hidden(young)
    line = AuditLine.objects.get(action="delete.job")
    assert (line.actor, line.via, line.subject) == ("convergence", "system", f"job {old.pk}")
    assert "kept for its time" in line.text
    assert list_expired_jobs(clock.now() + timedelta(seconds=61), 10).free == [young.pk]
    assert check_all() == []


def open_dependency(loop: Loop, cell: FakeCell, job: Job) -> Callable[[], object]:
    other = loop.submit(depends_on=[{"job": job.pk}])
    open_ones = JobDependency.objects.filter(job=other)
    open_ones.update(met_at=None, failed_at=None)
    return lambda: open_ones.update(met_at=clock.now())


def unfinished_retry(loop: Loop, cell: FakeCell, job: Job) -> Callable[[], object]:
    made = retry_job(job_id=job.pk, guid=None, actor="me", now=clock.now())
    assert made.created
    return lambda: finish(loop, cell, made.job_id)


def retry_of_a_retry(loop: Loop, cell: FakeCell, job: Job) -> Callable[[], object]:
    made = retry_job(job_id=job.pk, guid=None, actor="me", now=clock.now())
    finish(loop, cell, made.job_id, S.FAILED)
    return unfinished_retry(loop, cell, Job.objects.get(pk=made.job_id))


def waiting_callback(loop: Loop, cell: FakeCell, job: Job) -> Callable[[], object]:
    callback = call_back(job, tries=3)
    over = {"state": "delivered", "ended_at": clock.now()}
    return lambda: Callback.objects.filter(pk=callback.pk).update(**over)


def claimed_callback(loop: Loop, cell: FakeCell, job: Job) -> Callable[[], object]:
    claim = {"claim": uuid4(), "claimed_until": clock.now()}
    callback = call_back(job, state="claimed", tries=3, **claim)
    over = {"state": "abandoned", "ended_at": clock.now(), "claim": None, "claimed_until": None}
    return lambda: Callback.objects.filter(pk=callback.pk).update(**over)


def finish(loop: Loop, cell: FakeCell, job_id: int, state: S = S.SUCCEEDED) -> None:
    loop.place()
    for attempt in Attempt.objects.filter(job_id=job_id):
        cell.end(attempt, state, exit_code=0 if state is S.SUCCEEDED else 1, started_at=1.0)
    assert Job.objects.get(pk=job_id).settled_at is not None


@pytest.mark.parametrize(
    "refer",
    [open_dependency, unfinished_retry, retry_of_a_retry, waiting_callback, claimed_callback],
)
def test_referenced_job_is_kept_until_the_reference_ends(
    loop: Loop, cell: FakeCell, refer: Callable[[Loop, FakeCell, Job], Callable[[], object]]
) -> None:
    job = ended(loop, cell, S.FAILED)
    let_go = refer(loop, cell, job)
    expire()
    assert not is_hidden(job)
    let_go()
    expire()
    assert is_hidden(job)


def test_parent_is_kept_until_its_children_have_finished(loop: Loop, cell: FakeCell) -> None:
    parent = loop.submit(ttl_seconds_after_finished=0)
    child = loop.submit(parent=parent.pk)
    loop.place()
    for attempt in loop.attempts(parent):
        cell.end(attempt, S.SUCCEEDED, exit_code=0, started_at=1.0)
    assert expire() == 0
    finish(loop, cell, child.pk)
    loop.converge()
    assert left_of(parent) == {}
    child.refresh_from_db()
    assert child.parent_id is None
    assert check_all() == []


def one_off(loop: Loop, cell: FakeCell, **callback: Any) -> Job:
    job = ended(loop, cell)
    task = loop.tasks(job)[0]
    Job.objects.filter(pk=job.pk).update(is_one_off=True, guid=f"guid-{job.pk}")
    OneOff.objects.create(
        task=task, job=job, project=job.project, guid=f"guid-{job.pk}", domain="d"
    )
    if callback:
        call_back(job, task=task, **callback)
    return job


def test_one_off_task_is_kept_until_its_callback_was_tried_once(loop: Loop, cell: FakeCell) -> None:
    claim = {"claim": uuid4(), "claimed_until": clock.now()}
    jobs = {
        "none": one_off(loop, cell),
        "new": one_off(loop, cell, tries=0),
        "under way": one_off(loop, cell, tries=1, state="claimed", **claim),
        "tried": one_off(loop, cell, tries=1, is_tried=True),
        "the delivering process died": one_off(loop, cell, tries=3),
        "died for a day": one_off(loop, cell, tries=9, give_up_at=clock.now()),
    }
    assert expire() == 3
    gone = {name for name, job in jobs.items() if is_hidden(job)}
    assert gone == {"none", "tried", "died for a day"}
    # Its pending callbacks are not delivered.
    assert Callback.objects.get(job=jobs["tried"]).state == "abandoned"


def test_resolving_one_off_task_expires_and_its_rows_follow_on_release(
    loop: Loop, cell: FakeCell
) -> None:
    job = one_off(loop, cell)
    claim_task(task_id=loop.tasks(job)[0].pk, by="me", now=clock.now())
    # Its container may be there still.
    Attempt.objects.filter(job=job).update(released_at=None, release_kind="")
    Job.objects.filter(pk=job.pk).update(settled_at=None)
    assert expire() == 1
    assert not OneOff.objects.exists()
    assert purge_deleted(forever).jobs == 0
    now = clock.now()
    Attempt.objects.filter(job=job).update(released_at=now, release_kind="confirmed")
    Job.objects.filter(pk=job.pk).update(settled_at=now)
    assert purge_deleted(forever).jobs == 1
    assert left_of(job) == {}


@pytest.mark.usefixtures("small_pages")
def test_referenced_jobs_do_not_block_the_expiry_of_later_jobs(loop: Loop, cell: FakeCell) -> None:
    referenced = [ended(loop, cell) for _ in range(2 * PAGE + 1)]
    for job in referenced:
        call_back(job)
    free = [ended(loop, cell) for _ in range(PAGE)]
    # A call reads a page, and the next one goes on: no tick takes long.
    assert [expire() for _ in range(4)] == [0, 0, PAGE, 0]
    assert all(is_hidden(job) for job in free)
    assert not any(is_hidden(job) for job in referenced)
    Callback.objects.filter(job=referenced[0]).delete()
    assert sum(expire() for _ in range(3)) == 1


@pytest.mark.usefixtures("small_pages")
def test_expiry_stops_when_its_time_slice_is_over(loop: Loop, cell: FakeCell) -> None:
    jobs = [ended(loop, cell) for _ in range(3 * PAGE)]
    answers = iter([False, False, True])  # at the clock: before each page that is read, or deleted
    assert delete_expired(now=clock.now(), is_over=lambda: next(answers)) == (PAGE, False)
    assert [is_hidden(job) for job in jobs] == [True] * PAGE + [False] * 2 * PAGE
    assert delete_expired(now=clock.now(), is_over=forever) == (2 * PAGE, True)


@pytest.mark.usefixtures("small_pages")
def test_large_and_small_jobs_are_purged_together_in_pages(loop: Loop, cell: FakeCell) -> None:
    jobs = [ended(loop, cell, replicas=3 * PAGE + 1), ended(loop, cell), ended(loop, cell)]
    jobs += [ended(loop, cell, S.FAILED, replicas=2, retries={"failure": 0}) for _ in range(PAGE)]
    kept = ended(loop, cell, ttl_seconds_after_finished=60, replicas=2)
    for number in range(PAGE + 2):
        callback = call_back(
            jobs[0], task=loop.tasks(jobs[0])[number], state="abandoned", ended_at=clock.now()
        )
        for number in range(2):
            Delivery.objects.create(
                callback=callback, number=number, began_at=clock.now(), ended_at=clock.now()
            )
    while expire():
        pass
    most: dict[str, int] = {}

    def watch(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
        result = execute(sql, *rest)
        if sql.split()[0] in ("DELETE", "WITH"):
            most[sql] = max(most.get(sql, 0), rest[-1]["cursor"].rowcount)
        return result

    with connection.execute_wrapper(watch):
        done = purge_deleted(forever)
    assert done.is_done
    assert done.jobs == len(jobs)
    assert left_of(*jobs) == {}
    assert max(most.values()) == PAGE
    assert set(left_of(kept)) == {"Job", "Task", "Attempt", "Transition", "TaskGroup"}
    assert check_all() == []


@pytest.mark.usefixtures("small_pages")
def test_purge_killed_at_any_statement_is_finished_by_the_next_tick(
    loop: Loop, cell: FakeCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine must not end the slice early.
    monkeypatch.setattr("controlplane.commands.convergence.deletion._SLICE_SECONDS", 60.0)
    at = 0
    while True:
        parent = ended(loop, cell, replicas=2, ttl_seconds_after_finished=60)
        child = loop.submit()
        Job.objects.filter(pk=child.pk).update(parent=parent)
        call_back(parent, state="delivered", ended_at=clock.now())
        for attempt in loop.attempts(parent):
            store.append_log(attempt.uid, "stdout", offset=0, content=b"hello")
        delete_job(job_id=parent.pk, actor="me", now=clock.now())
        death = work_until_death(lambda: purge_deleted(forever), at_statement(at))
        assert check_all() == []
        loop.converge()
        assert left_of(parent) == {}, death.before
        assert not [path for path in root().rglob("*") if path.is_file()], death.before
        if death.before is None:
            break
        at += 1
    assert at > 20


def test_unwritable_store_does_not_block_jobs_without_files(loop: Loop, cell: FakeCell) -> None:
    with_files, without = ended(loop, cell, replicas=2), ended(loop, cell)
    uid = loop.attempts(with_files)[0].uid
    store.append_log(uid, "stdout", offset=0, content=b"hello")
    in_the_way = root() / "discarded"
    if in_the_way.exists():
        in_the_way.rmdir()
    in_the_way.touch()  # nothing can be put there: the tests run as root, too
    loop.converge()
    assert left_of(without) == {}
    assert is_hidden(with_files)
    assert Attempt.objects.filter(uid=uid).exists()
    alert = Alert.objects.get(kind="files_not_deleted", cleared_at=None)
    assert alert.text.endswith("attempts that stay until then: 1")
    # Nothing is woken for what only time will resolve.
    assert not [queue for queue, message in loop.wire.sent if "retention" in message]
    os.unlink(in_the_way)
    loop.converge()
    assert left_of(with_files) == {}
    assert not Alert.objects.filter(kind="files_not_deleted", cleared_at=None).exists()
    assert not [path for path in root().rglob("*") if path.is_file()]


def test_undeletable_job_does_not_block_other_jobs(loop: Loop, cell: FakeCell) -> None:
    poisoned, other = ended(loop, cell, replicas=2), ended(loop, cell)
    expire()
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN RAISE EXCEPTION 'this row stays'; END $$;
            CREATE TRIGGER refuse BEFORE DELETE ON controlplane_task FOR EACH ROW
            WHEN (OLD.job_id = {poisoned.pk}) EXECUTE FUNCTION refuse()
            """
        )
    try:
        assert purge_deleted(forever).jobs == 1
        assert left_of(other) == {}
        alert = Alert.objects.get(kind="job_skipped")
        assert str(poisoned.pk) in alert.subject
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TRIGGER refuse ON controlplane_task; DROP FUNCTION refuse()")
    assert purge_deleted(forever).jobs == 1
    assert left_of(poisoned) == {}


def test_retention_tick_continues_expiry_unless_convergence_holds(
    loop: Loop, cell: FakeCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ended(loop, cell)
    monkeypatch.setattr("controlplane.commands.convergence.deletion._SLICE_SECONDS", 0.0)
    loop.converge()
    assert left_of(job) != {}
    assert "convergence" in [queue for queue, _ in loop.wire.sent]
    monkeypatch.undo()
    TickState.objects.filter(name="convergence").update(
        hold_until=clock.now() + timedelta(seconds=30)
    )
    assert retention.run() == {}
    TickState.objects.filter(name="convergence").update(
        hold_until=None, finished_at=clock.now() - timedelta(hours=1)
    )
    assert retention.run() == {}
    assert left_of(job) != {}
    TickState.objects.filter(name="convergence").update(finished_at=clock.now())
    assert retention.run() == {"expired": 1, "usage_counted": 1, "purged": 1}
    assert left_of(job) == {}


@pytest.mark.parametrize("slice_seconds", [60.0, 0.0])
def test_records_are_deleted_after_their_retention_time(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, slice_seconds: float
) -> None:
    """Also if the time of a tick is over at once: one page of each table goes in any case."""
    monkeypatch.setattr("controlplane.commands.convergence.deletion._SLICE_SECONDS", slice_seconds)
    policy, now = load_policy(), clock.now()
    ages = {AuditLine: policy.audit_age, TickRun: policy.run_age, DeadLetter: policy.finding_age}
    for model, age in ages.items():
        for over in (60, -60):
            at = now - timedelta(seconds=age + over)
            instants = {"started_at": at, "finished_at": at} if model is TickRun else {"at": at}
            model._default_manager.create(**instants)
    raised = now - timedelta(days=60)
    endings = {over: now - timedelta(seconds=policy.finding_age + over) for over in (60, -60)}
    for name, cleared in (*endings.items(), (None, None)):
        Alert.objects.create(
            kind="k",
            subject=str(name),
            raised_at=raised,
            last_raised_at=raised,
            cleared_at=cleared,
        )
    assert loop.converge()["records_forgotten"] == 4
    lines = AuditLine.objects.filter(actor="")
    assert lines.count() == DeadLetter.objects.count() == 1
    # And the tick that has just run.
    assert TickRun.objects.count() == 2
    assert set(Alert.objects.values_list("subject", flat=True)) == {"-60", "None"}


def test_retention_does_not_scan_growing_tables(loop: Loop, cell: FakeCell) -> None:
    jobs = [ended(loop, cell, replicas=2) for _ in range(3)]
    call_back(jobs[0], state="delivered", ended_at=clock.now())
    plans: dict[str, str] = {}

    def watch(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.split()[0] in ("DELETE", "WITH", "SELECT", "UPDATE"):
            with connection.connection.cursor() as cursor:
                cursor.execute("SET enable_seqscan = off")
                cursor.execute("EXPLAIN " + sql, params)
                plans[sql] = "\n".join(line for (line,) in cursor.fetchall())
        return execute(sql, params, many, context)

    with connection.execute_wrapper(watch):
        assert expire() == 3
        assert purge_deleted(forever).jobs == 3
    assert len(plans) > 15
    grows = (
        "task",
        "attempt",
        "transition",
        "job",
        "taskgroup",
        "callback",
        "delivery",
        "jobdependency",
        "oneoff",
    )
    read = [f"Seq Scan on controlplane_{name} " for name in grows]
    assert [plan for plan in plans.values() if any(scan in plan for scan in read)] == []


def test_deleted_job_keeps_its_rows_until_dependencies_are_resolved(
    loop: Loop, cell: FakeCell
) -> None:
    job = ended(loop, cell)
    let_go = open_dependency(loop, cell, job)
    delete_job(job_id=job.pk, actor="me", now=clock.now())
    assert purge_deleted(forever).jobs == 0
    assert left_of(job)["Task"] == 1
    let_go()
    assert purge_deleted(forever).jobs == 1
    assert left_of(job) == {}


def test_deleted_failed_job_keeps_its_rows_until_its_children_end(
    loop: Loop, cell: FakeCell
) -> None:
    job = ended(loop, cell, S.FAILED)
    child = loop.submit()
    Job.objects.filter(pk=child.pk).update(parent=job)
    delete_job(job_id=job.pk, actor="me", now=clock.now())
    assert purge_deleted(forever).jobs == 0
    Job.objects.filter(pk=child.pk).update(ending_as=S.KILLED, ending_reason="parent_ended")
    assert purge_deleted(forever).jobs == 1


@pytest.mark.usefixtures("small_pages")
def test_deletion_continues_at_its_cursor_in_another_process(loop: Loop, cell: FakeCell) -> None:
    """Where it left off is in the database, and the front has its turn after the end."""
    jobs = [ended(loop, cell) for _ in range(3 * PAGE)]
    answers = iter([False, False, True])
    assert delete_expired(now=clock.now(), is_over=lambda: next(answers)) == (PAGE, False)
    last = Job.objects.get(pk=jobs[PAGE - 1].pk)
    assert Walk.objects.get(name="expired_jobs").after.endswith(f":{last.pk}")
    assert delete_expired(now=clock.now(), is_over=forever) == (2 * PAGE, True)
    assert Walk.objects.get(name="expired_jobs").after == ""
    purge_deleted(lambda: Job.objects.count() == 2 * PAGE)
    assert Walk.objects.get(name="deleted_jobs").after == str(jobs[PAGE - 1].pk)
    front, behind = jobs[PAGE : 2 * PAGE], jobs[2 * PAGE :]
    Walk.objects.filter(name="deleted_jobs").update(after=str(front[-1].pk))
    purge_deleted(lambda: Job.objects.count() == PAGE)
    assert left_of(*behind) == {}
    assert left_of(*front) != {}
    assert purge_deleted(forever).jobs == PAGE
    assert left_of(*front) == {}
    assert Walk.objects.get(name="deleted_jobs").after == ""
