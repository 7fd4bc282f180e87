"""Rule 12 repairs derived columns that raw SQL broke, raises an alert, and changes no more."""

import re
from datetime import timedelta

import pytest

from controlplane import clock
from controlplane.commands.convergence import orphans
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.retention.deletion import delete_job
from controlplane.contract.states import TaskState as S
from controlplane.models import Alert, Attempt, Job, JobDependency, Task, TaskGroup, Walk
from controlplane.queries.integrity import invariants as pages
from controlplane.queries.integrity.invariants import check_all
from controlplane.queries.sql import execute, rows
from tests.integration.loop.conftest import Loop
from tests.simulation.world import World

WALKS = ("recount", "orphans")
DONE = {"recounted", "orphans"}


def walk(loop: Loop) -> dict[str, int]:
    """A tick of the clock with which both walks go on; what they had to put right."""
    Walk.objects.update(scanned_at=clock.now() - timedelta(hours=1))
    counts = loop.converge()
    assert not Alert.objects.filter(kind="rule_failed").exists()
    return {name: count for name, count in counts.items() if name in DONE and count}


def alerts(kind: str = "repaired") -> dict[str, str]:
    return dict(Alert.objects.filter(kind=kind, cleared_at=None).values_list("subject", "text"))


def check_repaired(loop: Loop, *, recounted: int) -> None:
    """Check that this tick repairs the rows with an alert, and that the next one closes it."""
    assert walk(loop) == {"recounted": recounted}
    assert alerts() == {"rule recount": f"had to be repaired: recounted {recounted}"}
    assert check_all() == []
    assert walk(loop) == {}
    assert alerts() == {}
    assert Alert.objects.filter(kind="repaired", cleared_at__isnull=False).count() == 1


def test_wrong_counts_are_repaired_with_an_alert(loop: Loop) -> None:
    job = loop.submit(replicas=3)
    assert walk(loop) == {}
    execute("UPDATE controlplane_taskgroup SET counts[5] = 1, counts[2] = 2")
    check_repaired(loop, recounted=1)
    assert TaskGroup.objects.get(job=job).counts[S.PENDING] == 3


def test_job_with_a_missing_success_count_is_ended(loop: Loop) -> None:
    cell, job = loop.cell(), loop.submit(replicas=2, max_task_failures=1)
    loop.place()
    first, second = loop.attempts(job)
    cell.end(first, S.SUCCEEDED, exit_code=0)
    execute("UPDATE controlplane_taskgroup SET counts[5] = 0, counts[10] = 2")
    cell.end(second, S.FAILED, exit_code=1)
    assert loop.state(job) == "RUNNING"
    check_repaired(loop, recounted=2)
    assert loop.state(job) == "SUCCEEDED"
    assert Job.objects.get().settled_at is not None


def test_task_wrongly_marked_as_held_is_placed(loop: Loop) -> None:
    job = loop.submit()
    execute("UPDATE controlplane_task SET attempt_open = true")
    loop.cell()
    loop.place()
    assert loop.states(job) == ["PENDING"]
    check_repaired(loop, recounted=1)
    loop.place()
    assert loop.states(job) == ["ASSIGNED"]


def test_task_wrongly_marked_as_free_is_not_placed_twice(loop: Loop) -> None:
    cell, job = loop.cell(), loop.submit(retries={"preemption": 3})
    loop.place()
    [attempt] = loop.attempts(job)
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    execute("UPDATE controlplane_task SET attempt_open = false")
    check_repaired(loop, recounted=1)
    assert Task.objects.get().attempt_open
    cell.end(attempt, S.KILLED)
    assert Job.objects.get().settled_at is not None


def test_running_task_without_an_attempt_is_requeued_without_charge(loop: Loop) -> None:
    loop.cell()
    job = loop.submit()
    loop.place()
    Attempt.objects.all().delete()
    assert walk(loop) == {"recounted": 1}
    [task] = loop.tasks(job)
    assert (S(task.state), task.attempt_open, task.preemption_count) == (S.PENDING, False, 0)
    assert TaskGroup.objects.get().counts[S.PENDING] == 1
    assert walk(loop) == {}


def test_missing_watch_mark_of_a_dependency_is_repaired(loop: Loop) -> None:
    cell, first = loop.cell(), loop.submit(name="first")
    second = loop.submit(name="second", depends_on=[{"job": str(first.pk)}])
    execute("UPDATE controlplane_job SET is_watched = false")
    check_repaired(loop, recounted=1)
    Alert.objects.all().delete()
    # Now it does not know its dependents as it ends, and no rule records its end for them.
    execute("UPDATE controlplane_job SET is_watched = false")
    loop.place()
    cell.end(loop.attempts(first)[0], S.SUCCEEDED, exit_code=0)
    assert JobDependency.objects.get().met_at is None
    assert walk(loop) == {"recounted": 2}
    assert JobDependency.objects.get().met_at is not None
    loop.converge()
    assert TaskGroup.objects.get(job=second).startable_at is not None
    assert check_all() == []


def test_job_that_depends_on_a_vanished_job_is_killed(loop: Loop) -> None:
    first = loop.submit(name="first")
    second = loop.submit(name="second", depends_on=[{"job": str(first.pk)}])
    for table in ("transition", "task", "taskgroup"):
        execute(f"DELETE FROM controlplane_{table} WHERE job_id = %s", [first.pk])
    execute("DELETE FROM controlplane_job WHERE id = %s", [first.pk])
    check_repaired(loop, recounted=1)
    assert loop.state(second) == "KILLED"


def test_missing_wait_mark_of_a_dependent_job_is_repaired(loop: Loop) -> None:
    loop.cell()
    first = loop.submit(name="first")
    second = loop.submit(name="second", depends_on=[{"job": str(first.pk)}])
    execute("UPDATE controlplane_job SET waits_for_jobs = false")
    check_repaired(loop, recounted=1)
    loop.place()
    assert loop.states(second) == ["PENDING"]
    assert Job.objects.get(pk=second.pk).waits_for_jobs


def test_contradiction_alert_stays_open_until_it_is_resolved(loop: Loop) -> None:
    job = loop.submit()
    cancel_job(job_id=job.pk, reason="", force=False, actor="ann", now=clock.now())
    execute("UPDATE controlplane_job SET state = 4, ending_as = NULL")
    assert walk(loop) == {}
    assert alerts("contradiction") == {
        f"job {job.pk}": (
            f"INV-23 job {job.pk}: is SUCCEEDED, KILLED follows from its tasks, but an end is final"
        )
    }
    execute("UPDATE controlplane_job SET state = 6, ending_as = 6")
    walk(loop)
    assert alerts("contradiction") == {}


@pytest.mark.parametrize("is_deleted", [True, False])
def test_contradiction_of_an_old_job_stays_until_resolved_or_deleted(
    loop: Loop, is_deleted: bool
) -> None:
    job = loop.submit()
    cancel_job(job_id=job.pk, reason="", force=False, actor="ann", now=clock.now())
    execute("UPDATE controlplane_job SET state = 4, ending_as = NULL")
    walk(loop)
    execute("UPDATE controlplane_job SET finished_at = finished_at - interval '2 days'")
    walk(loop)
    assert list(alerts("contradiction")) == [f"job {job.pk}"]
    if is_deleted:
        delete_job(job_id=job.pk, actor="ann", now=clock.now())
    else:
        execute("UPDATE controlplane_job SET state = 6, ending_as = 6")
    walk(loop)
    assert alerts("contradiction") == {}


@pytest.mark.parametrize(
    ("statement", "gone"),
    [
        ("UPDATE controlplane_attempt SET task_id = task_id + 1000", "controlplane_attempt"),
        ("UPDATE controlplane_attempt SET job_id = job_id + 1000", "controlplane_attempt"),
        ("UPDATE controlplane_transition SET job_id = job_id + 1000", "controlplane_transition"),
        (
            """
            INSERT INTO controlplane_task
            SELECT (jsonb_populate_record(t, '{"id": 900, "job_id": 901, "index": 7}')).*
            FROM controlplane_task t
            """,
            "controlplane_task",
        ),
        (
            """
            INSERT INTO controlplane_callback (job_id, owner_id, url, host, state, tries, is_tried,
                                               due_at, give_up_at, created_at, last_error)
            VALUES (901, 1, 'http://x/', 'x', 'waiting', 0, false, now(), now(), now(), '')
            """,
            "controlplane_callback",
        ),
        (
            """
            INSERT INTO controlplane_oneoff (task_id, job_id, project_id, guid, domain, claimed_by)
            VALUES (900, 901, 902, 'guid', 'domain', '')
            """,
            "controlplane_oneoff",
        ),
        (
            """
            INSERT INTO controlplane_delivery (callback_id, number, began_at, ended_at, error)
            VALUES (901, 1, now(), now(), '')
            """,
            "controlplane_delivery",
        ),
    ],
)
def test_orphaned_rows_are_deleted(loop: Loop, statement: str, gone: str) -> None:
    cell, job = loop.cell(), loop.submit(retries={"failure": 1})
    loop.place()
    cell.end(loop.attempts(job)[0], S.FAILED, exit_code=1)
    assert walk(loop) == {}
    before = {table: count_rows(table) for table in TABLES}
    planted = execute(statement)
    assert planted
    assert walk(loop) == {"orphans": planted}
    assert "rule orphans" in alerts()
    after = {table: count_rows(table) for table in TABLES}
    assert {name for name in TABLES if after[name] != before[name]} <= {gone}
    assert walk(loop).get("orphans", 0) == 0
    assert "rule orphans" not in alerts()


TABLES = [f"controlplane_{name}" for name in orphans.PARENTLESS]


def count_rows(table: str) -> int:
    [(count,)] = rows(f"SELECT count(*) FROM {table}")
    return int(count)


def test_walks_continue_page_by_page(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [loop.submit(replicas=2).pk for _ in range(5)]
    loop.cell(cpu=8_000)
    loop.place()
    monkeypatch.setattr(pages, "MOST_JOBS", 2)
    monkeypatch.setattr(orphans, "ROWS_PER_PAGE", 4)
    execute(
        "UPDATE controlplane_taskgroup SET counts[5] = 1, counts[10] = counts[10] - 1"
        " WHERE counts[10] > 0"
    )
    execute("UPDATE controlplane_taskgroup SET counts[5] = 1, counts[2] = 1 WHERE counts[2] = 2")
    reached = []
    for expected in (2, 2, 1):
        assert walk(loop)["recounted"] == expected
        reached.append(Walk.objects.get(name="recount").after)
    assert reached == [str(ids[1]), str(ids[3]), ""]
    # A round after one that was not clean: only its end closes the alert.
    for is_open in (True, True, False):
        assert walk(loop) == {}
        assert ("rule recount" in alerts()) == is_open
    seen = {Walk.objects.get(name="orphans").after}
    for _ in range(20):
        walk(loop)
        seen.add(Walk.objects.get(name="orphans").after)
    assert {re.sub(r":.*", "", item) for item in seen} >= {"", "task", "attempt", "transition"}


def test_jobs_ended_long_ago_are_skipped(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = loop.submit(), loop.submit()
    for job in (old, new):
        cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    execute("UPDATE controlplane_job SET finished_at = %s", [clock.now() - timedelta(days=2)])
    monkeypatch.setattr(pages, "MOST_IDS", 1)
    execute("UPDATE controlplane_taskgroup SET counts[7] = 0, counts[2] = 1")
    for after in (str(old.pk), str(new.pk), ""):
        assert walk(loop) == {}
        assert Walk.objects.get(name="recount").after == after


def test_recount_runs_in_every_tenth_tick_only(loop: Loop) -> None:
    loop.submit()
    loop.converge()
    execute("UPDATE controlplane_taskgroup SET counts[5] = 1, counts[2] = 0")
    assert "recounted" not in loop.converge()
    assert walk(loop) == {"recounted": 1}


@pytest.mark.parametrize("seed", [11, 12, 13])
def test_simulation_with_faults_needs_no_repair(transactional_db: None, seed: int) -> None:
    world = World(seed=seed)
    with world.installed():
        world.run(healed_at=60.0, heal=lambda: None)
    unexpected = Alert.objects.filter(kind__in=("repaired", "contradiction", "rule_failed"))
    assert list(unexpected.values_list("subject", "text")) == [], f"seed {seed}"
    assert Walk.objects.filter(name__in=WALKS).count() == len(WALKS)
