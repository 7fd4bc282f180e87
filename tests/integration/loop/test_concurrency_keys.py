"""Concurrency keys in the loop: tasks wait, submissions are refused, older jobs are replaced."""

import json
import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from controlplane import clock
from controlplane.commands.jobs import submit
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.jobs.dry_run import dry_run
from controlplane.commands.jobs.move import move_job
from controlplane.commands.jobs.rerun import retry_job
from controlplane.commands.jobs.submit import submit_jobs
from controlplane.commands.placement.limits import within_keys
from controlplane.commands.state.attempt_uids import draw_uids
from controlplane.commands.tenancy.accounts import create_user
from controlplane.contract.states import TaskState as S
from controlplane.domain.errors import Conflict
from controlplane.domain.jobs.concurrency import ConcurrencyKeyFull
from controlplane.domain.placement.model.concurrency import ConcurrencyRule, key_number
from controlplane.domain.roles import Role
from controlplane.domain.state.effects import Placement
from controlplane.domain.state.states import Band
from controlplane.models import Attempt, Domain, Job, Pool, Project, Task, Transition
from controlplane.queries.integrity.invariants import check_all
from controlplane.queries.sql import rows
from controlplane.queries.views.explain import explain_task
from controlplane.spec import parse_job
from tests.harness.members import admit
from tests.integration.loop.conftest import Loop
from tests.integration.loop.everything import ago
from tests.integration.loop.test_due_queries import copy_all, rows_read

SMALL = {"cpu": 0.1, "memory": "64Mi"}

pytestmark = pytest.mark.usefixtures("many_slots")


def keyed(
    loop: Loop, limit: int | None = 2, *, key: str = "customer-42", body: Any = None, **rule: Any
) -> Job:
    concurrency = {"key": key, **({} if limit is None else {"limit": limit}), **rule}
    return loop.submit(**{"resources": SMALL, "concurrency": concurrency, **(body or {})})


def assigned(*jobs: Job) -> list[int]:
    """Return by job how many of its tasks have unreleased attempts."""
    return [Attempt.objects.filter(job=job, released_at=None).count() for job in jobs]


def reason_of(job: Job) -> dict[str, Any]:
    task = Task.objects.filter(job=job, state=S.PENDING).order_by("id").first()
    assert task is not None
    return dict(explain_task(task.pk, now=clock.now())["reason"])


# ------------------------------------------------------------------------------------- wait


def test_tasks_of_all_jobs_with_a_key_share_its_limit(loop: Loop) -> None:
    cell = loop.cell()
    first = keyed(loop, 3, body={"replicas": 2})
    second = keyed(loop, 3, body={"replicas": 2})
    other = keyed(loop, 3, key="customer-43", body={"replicas": 3})
    free = loop.submit(resources=SMALL, replicas=5)
    loop.place()
    assert assigned(first, second, other, free) == [2, 1, 3, 5]
    assert reason_of(second) == {
        "code": "concurrency_limit",
        "text": "concurrency key customer-42: 3 tasks on cells + 1 requested > 3 allowed; held by"
        f" job {first.pk}, job {second.pk}",
        "key": "customer-42",
        "used": 3,
        "requested": 1,
        "limit": 3,
        "jobs": [{"job": first.pk, "tasks": 2}, {"job": second.pk, "tasks": 1}],
    }
    cell.end(loop.attempts(first)[0], S.SUCCEEDED, exit_code=0)
    loop.place()
    assert assigned(first, second) == [1, 2]
    assert check_all() == []


def test_key_is_held_until_the_container_is_gone(loop: Loop) -> None:
    cell = loop.cell()
    first = keyed(loop, 1)
    loop.place()
    second = keyed(loop, 1)
    cancel_job(job_id=first.pk, reason="", force=False, actor="test", now=clock.now())
    loop.place()
    assert assigned(first, second) == [1, 0]
    cell.end(loop.attempts(first)[0], S.KILLED, reason="stopped")
    loop.place()
    assert assigned(first, second) == [0, 1]


def test_each_job_obeys_its_own_limit(loop: Loop) -> None:
    loop.cell()
    low = keyed(loop, 1, body={"replicas": 3})
    high = keyed(loop, 4, body={"replicas": 9})
    loop.place()
    # One of the lower limit; the higher one counts it.
    assert assigned(low, high) == [1, 3]
    assert reason_of(low)["limit"] == 1
    assert reason_of(high)["limit"] == 4


def test_keys_of_two_projects_do_not_see_each_other(loop: Loop) -> None:
    loop.cell()
    Project.objects.create(domain=Domain.objects.get(), name="other")
    admit(loop.owner, Role.SUBMITTER, "other")
    own = keyed(loop, 1, body={"replicas": 2})
    foreign = keyed(loop, 1, body={"replicas": 2, "project": "other"})
    loop.place()
    assert assigned(own, foreign) == [1, 1]
    assert reason_of(own)["jobs"] == [{"job": own.pk, "tasks": 1}]
    # A job of the other project with the key is neither replaced nor in the way.
    keyed(loop, 2, body={"project": "other"}, on_conflict="replace")
    assert Job.objects.get(pk=own.pk).ending_as is None


def test_key_is_shared_by_all_pools_and_users_of_the_project(loop: Loop) -> None:
    loop.cell()
    pool = Pool.objects.create(name="second")
    loop.cell("cell-2")
    rows("UPDATE controlplane_cell SET pool_id = %s WHERE name = 'cell-2' RETURNING id", [pool.pk])
    first = keyed(loop, 2, body={"replicas": 3})
    second = keyed(loop, 2, body={"replicas": 3, "pool": "second"})
    loop.place()
    assert sum(assigned(first, second)) == 2


def test_gang_counts_whole_or_not_at_all(loop: Loop) -> None:
    cell = loop.cell()
    single = keyed(loop, 3)
    loop.place()
    gang = keyed(loop, 3, body={"replicas": 3, "coscheduled": True})
    later = keyed(loop, 3)
    loop.place()
    assert assigned(single, gang, later) == [1, 0, 1]
    reason = reason_of(gang)
    assert reason["code"] == "waiting_for_gang"
    assert (
        "concurrency key customer-42: 1 task on cells + 3 requested > 3 allowed" in reason["text"]
    )
    for job in (single, later):
        cell.end(loop.attempts(job)[0], S.SUCCEEDED, exit_code=0)
    loop.place()
    assert assigned(gang) == [3]


def test_moved_job_keeps_its_key(loop: Loop) -> None:
    loop.cell()
    job = keyed(loop, 1, body={"replicas": 2})
    move_job(job_id=job.pk, band=Band.BATCH, role=Role.MANAGER, actor="test", now=clock.now())
    loop.place()
    assert assigned(job) == [1]
    assert reason_of(job)["code"] == "concurrency_limit"


# ------------------------------------------------------------------------------- starts per second


def test_rate_limits_attempts_of_all_jobs_in_each_span(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = loop.cell()
    at = clock.now()
    monkeypatch.setattr(clock, "now", lambda: at)
    rate = {"count": 3, "per_seconds": 60}
    first = keyed(loop, None, starts=rate, body={"replicas": 2})
    second = keyed(loop, None, starts=rate, body={"replicas": 5})
    loop.place()
    assert assigned(first, second) == [2, 1]
    assert reason_of(second) == {
        "code": "concurrency_limit",
        "text": "concurrency key customer-42: 3 started in the last 60 s + 1 requested > 3 allowed",
        "key": "customer-42",
        "starts": {"used": 3, "requested": 1, "limit": 3, "per_seconds": 60},
    }
    # Ends do not give starts back.
    cell.end(loop.attempts(first)[0], S.SUCCEEDED, exit_code=0)
    at += timedelta(seconds=59.9)
    loop.place()
    assert Attempt.objects.count() == 3
    at += timedelta(seconds=0.1)
    loop.place()
    assert Attempt.objects.count() == 6
    assert check_all() == []


def test_retry_is_a_start(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = loop.cell()
    job = keyed(
        loop, None, starts={"count": 1, "per_seconds": 3600}, body={"retries": {"failure": 1}}
    )
    loop.place()
    cell.end(loop.attempts(job)[0], S.FAILED, exit_code=1)
    Task.objects.update(not_before=None)
    loop.place()
    assert loop.states(job) == ["PENDING"]
    later = clock.now() + timedelta(seconds=3601)
    monkeypatch.setattr(clock, "now", lambda: later)
    loop.place()
    assert loop.states(job) == ["ASSIGNED"]


# ----------------------------------------------------------------------------------- reject


def test_submission_is_refused_while_the_key_is_full(loop: Loop) -> None:
    cell = loop.cell()
    first, second = (keyed(loop, on_conflict="reject") for _ in range(2))
    with pytest.raises(ConcurrencyKeyFull) as refused:
        keyed(loop, on_conflict="reject")
    assert str(refused.value) == (
        f"concurrency key customer-42 is full: 2 open tasks of job {first.pk} and job {second.pk}"
        " + 1 of this job > 2 allowed (on_conflict: reject)"
    )
    keyed(loop, key="customer-43", on_conflict="reject")
    loop.place()
    cell.end(loop.attempts(first)[0], S.SUCCEEDED, exit_code=0)
    keyed(loop, on_conflict="reject")
    assert Job.objects.count() == 4


def test_job_larger_than_the_limit_is_accepted_alone_and_runs_in_turns(loop: Loop) -> None:
    loop.cell()
    job = keyed(loop, 2, on_conflict="reject", body={"replicas": 5})
    loop.place()
    assert assigned(job) == [2]
    with pytest.raises(ConcurrencyKeyFull):
        keyed(loop, 2, on_conflict="reject")


def test_refused_batch_creates_nothing(loop: Loop) -> None:
    body = {
        "name": "job",
        "image": "x",
        "concurrency": {"key": "k", "limit": 1, "on_conflict": "reject"},
    }
    with pytest.raises(ConcurrencyKeyFull, match="earlier jobs of this submission") as refused:
        submit_jobs(
            specs=[parse_job(body)] * 2, bodies=[body] * 2, owner=loop.owner, now=clock.now()
        )
    assert refused.value.position == 1
    assert not Job.objects.exists()


def test_second_submission_of_a_guid_is_no_conflict(loop: Loop) -> None:
    first = keyed(loop, 1, on_conflict="reject", body={"guid": "one"})
    again = keyed(loop, 1, on_conflict="reject", body={"guid": "one"})
    assert again.pk == first.pk


def test_concurrent_submission_of_a_guid_is_no_conflict(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client repeats a request whose first copy is still being carried out."""
    for rule in ("reject", "replace"):
        body = {
            "name": "job",
            "image": "x",
            "guid": f"one-{rule}",
            "concurrency": {"key": rule, "limit": 1, "on_conflict": rule},
        }
        specs, now = [parse_job(body)], clock.now()
        before = submit.load_submission_facts(specs, owner_id=loop.owner.pk, now=now)
        [first] = submit_jobs(specs=specs, bodies=[body], owner=loop.owner, now=now)
        with monkeypatch.context() as late:
            late.setattr(submit, "load_submission_facts", lambda *_, facts=before, **__: facts)
            [again] = submit_jobs(specs=specs, bodies=[body], owner=loop.owner, now=now)
        assert (again.job_id, again.created) == (first.job_id, False)
        assert Job.objects.get(pk=first.job_id).ending_as is None


def test_dry_run_and_retry_are_refused_like_a_submission(loop: Loop) -> None:
    cell = loop.cell()
    failed = keyed(loop, 1, on_conflict="reject")
    loop.place()
    cell.end(loop.attempts(failed)[0], S.FAILED, exit_code=1)
    loop.converge()
    keyed(loop, 1, on_conflict="reject")
    body = {
        "name": "job",
        "image": "x",
        "concurrency": {"key": "customer-42", "limit": 1, "on_conflict": "reject"},
    }
    with pytest.raises(ConcurrencyKeyFull):
        dry_run(spec=parse_job(body), body=body, owner=loop.owner, now=clock.now())
    with pytest.raises(Conflict, match="concurrency key customer-42 is full"):
        retry_job(job_id=failed.pk, guid=None, actor="owner", now=clock.now())
    assert Job.objects.count() == 2


def test_dry_run_predicts_the_wait_for_a_key(loop: Loop) -> None:
    loop.cell()
    keyed(loop, 2)
    loop.place()
    body = {
        "name": "job",
        "image": "x",
        "replicas": 3,
        "resources": SMALL,
        "concurrency": {"key": "customer-42", "limit": 2},
    }
    found = dry_run(spec=parse_job(body), body=body, owner=loop.owner, now=clock.now())
    [group] = found.groups
    assert (group.cells, group.waiting) == ({"cell-1": 1}, 2)
    assert group.reason is not None
    assert group.reason["code"] == "concurrency_limit"


# ----------------------------------------------------------------------------------- replace


def test_newest_job_replaces_the_oldest_until_it_fits(loop: Loop) -> None:
    cell = loop.cell()
    first, second, third = (keyed(loop, 3) for _ in range(3))
    loop.place()
    newest = keyed(loop, 3, on_conflict="replace", body={"replicas": 2})
    assert [Job.objects.get(pk=job.pk).ending_as for job in (first, second, third)] == [
        S.KILLED,
        S.KILLED,
        None,
    ]
    loop.converge()
    found = Transition.objects.filter(job_id=first.pk, task_id__isnull=False).latest("id")
    assert (found.reason, loop.states(first)) == ("replaced", ["KILLED"])
    assert f"replaced by job {newest.pk}, which has the same concurrency key" in {
        row.message for row in Transition.objects.filter(job_id=first.pk)
    }
    loop.place()
    # It needs no settlement of the replaced jobs, only their places.
    assert assigned(newest) == [0]
    assert reason_of(newest)["code"] == "concurrency_limit"
    for job in (first, second):
        cell.end(loop.attempts(job)[0], S.KILLED, reason="stopped")
    loop.place()
    assert assigned(third, newest) == [1, 2]
    assert check_all() == []


def test_ending_jobs_are_not_counted_by_a_replacing_job(loop: Loop) -> None:
    loop.cell()
    first, second = keyed(loop, 2), keyed(loop, 2, body={"name": "second"})
    loop.place()
    loop.submit(name="second", existing_job_policy="replace")
    assert Job.objects.get(pk=second.pk).ending_as == S.KILLED
    assert loop.states(second) == ["ASSIGNED"]
    keyed(loop, 2, on_conflict="replace")
    assert Job.objects.get(pk=first.pk).ending_as is None


def test_jobs_of_other_users_are_not_replaced(loop: Loop) -> None:
    loop.cell()
    other, _ = create_user(name="other", password=None, is_operator=False)
    admit(other, Role.SUBMITTER)
    foreign = keyed(loop, 1)
    loop.owner = other
    with pytest.raises(ConcurrencyKeyFull, match="only your own jobs are replaced"):
        keyed(loop, 1, on_conflict="replace")
    assert Job.objects.get(pk=foreign.pk).ending_as is None
    assert Job.objects.count() == 1


# ------------------------------------------------------------------------------- concurrent ticks


def test_two_concurrent_placements_do_not_exceed_the_limit(loop: Loop) -> None:
    """Placement of another pool has checked the key but has not committed yet."""
    cell = loop.cell()
    job = keyed(loop, 1)
    loop.place()
    cell.end(loop.attempts(job)[0], S.SUCCEEDED, exit_code=0)
    tasks = [loop.tasks(keyed(loop, 1))[0] for _ in range(2)]
    rule = ConcurrencyRule(key_number(tasks[0].job.project_id, "customer-42"), "customer-42", 1)
    checked, may_commit, results = threading.Event(), threading.Event(), list[int]()

    def place(task: Task, *, first: bool) -> None:
        from controlplane.commands.state.apply import place_tasks
        from controlplane.queries.locks import lock_jobs

        try:
            with transaction.atomic():
                now = clock.now()
                [uid] = draw_uids(1, now=now)
                jobs = lock_jobs([task.job_id])
                one = Placement(
                    uid, task.pk, task.group_id, task.job_id, cell_id(), cell.incarnation, 1, 0
                )
                kept = within_keys([one], {task.group_id: rule})
                if first:
                    checked.set()
                    may_commit.wait(20)
                place_tasks(kept, jobs=jobs, now=now, start_before=now, actor="placement")
                results.append(len(kept))
        finally:
            connections.close_all()

    def cell_id() -> int:
        return int(rows("SELECT id FROM controlplane_cell")[0][0])

    threads = [threading.Thread(target=place, args=(tasks[0],), kwargs={"first": True})]
    threads[0].start()
    assert checked.wait(20)
    threads.append(threading.Thread(target=place, args=(tasks[1],), kwargs={"first": False}))
    threads[1].start()
    threads[1].join(0.5)
    assert threads[1].is_alive()
    may_commit.set()
    for thread in threads:
        thread.join(20)
    assert results == [1, 0]
    assert Attempt.objects.filter(released_at=None).count() == 1


def test_two_concurrent_submissions_do_not_both_fit(loop: Loop) -> None:
    """That of another user has checked the key but has not committed yet."""
    other, _ = create_user(name="other", password=None, is_operator=False)
    admit(other, Role.SUBMITTER)
    checked, may_commit = threading.Event(), threading.Event()
    results: dict[str, str] = {}
    body = {
        "name": "job",
        "image": "x",
        "concurrency": {"key": "k", "limit": 1, "on_conflict": "reject"},
    }

    def submit_one(owner: Any, *, first: bool) -> None:
        try:
            with transaction.atomic():
                submit_jobs(specs=[parse_job(body)], bodies=[body], owner=owner, now=clock.now())
                if first:
                    checked.set()
                    may_commit.wait(20)
            results[owner.username] = "created"
        except ConcurrencyKeyFull:
            results[owner.username] = "refused"
        finally:
            connections.close_all()

    threads = [
        threading.Thread(target=submit_one, args=(owner,), kwargs={"first": owner is loop.owner})
        for owner in (loop.owner, other)
    ]
    threads[0].start()
    assert checked.wait(20)
    threads[1].start()
    threads[1].join(0.5)
    assert threads[1].is_alive()
    may_commit.set()
    for thread in threads:
        thread.join(20)
    assert results == {loop.owner.username: "created", "other": "refused"}


# --------------------------------------------------------------------------------------- costs


KEY_STATEMENTS = ("concurrency_id = ANY", "a.concurrency_id = w.id", "concurrency IS NOT NULL")


def statements_about_keys(loop: Loop) -> int:
    """Return how many statements of a tick are about keys alone."""
    with CaptureQueriesContext(connection) as captured:
        loop.place()
    locks = [query for query in captured if "pg_advisory_xact_lock" in query["sql"]]
    found = [query for query in captured if any(part in query["sql"] for part in KEY_STATEMENTS)]
    return len(found) + len(locks)


def test_jobs_without_keys_cost_no_statement(loop: Loop) -> None:
    loop.cell(cpu=400)
    loop.submit(resources=SMALL, replicas=5)
    assert statements_about_keys(loop) == 0
    # Nothing is placed: only the usage is read.
    keyed(loop, 1, body={"replicas": 2})
    assert statements_about_keys(loop) == 1


def test_statements_of_a_tick_do_not_grow_with_keys(loop: Loop) -> None:
    loop.cell()
    rate = {"count": 1, "per_seconds": 9}

    def statements(keys: int) -> int:
        for number in range(keys):
            keyed(loop, 1, key=f"key-{keys}-{number}", body={"replicas": 2}, starts=rate)
        return statements_about_keys(loop)

    # Usage and starts, in the snapshot and again under the lock; the lock, and the rules of groups.
    assert statements(2) == 6
    assert statements(12) == 6
    assert Attempt.objects.count() == 14


def test_usage_is_read_by_indexes_however_many_attempts_ended(loop: Loop) -> None:
    cell = loop.cell()
    rate = {"count": 2, "per_seconds": 60}
    job = keyed(loop, 2, starts=rate)
    loop.place()
    cell.end(loop.attempts(job)[0], S.SUCCEEDED, exit_code=0)
    Attempt.objects.update(created_at=ago(3_600))
    copy_all(5_000)
    for table in ("job", "taskgroup", "task"):
        rows(f"SELECT setval(pg_get_serial_sequence('controlplane_{table}', 'id'), 1000000)")
    keyed(loop, 2, starts=rate, body={"replicas": 3})
    with CaptureQueriesContext(connection) as captured:
        loop.place()
    found = [one["sql"] for one in captured if any(part in one["sql"] for part in KEY_STATEMENTS)]
    assert len(found) == 5
    for statement in found:
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}")
            [(plans,)] = cursor.fetchall()
        [plan] = json.loads(plans) if isinstance(plans, str) else plans
        assert rows_read(plan["Plan"]) <= 10, statement
