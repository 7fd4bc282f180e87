"""The limit of unfinished tasks of a user holds exactly, whichever process takes a submission."""

from random import Random
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from controlplane import clock
from controlplane.commands.jobs import cap
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.domain.jobs.submission import JobsRefused
from controlplane.models import Job, Task
from controlplane.queries.sql import decoded, execute, rows
from tests.integration.loop.conftest import Loop

BASE = 7100


def limit(settings: Any, tasks: int) -> None:
    change = {"max_unfinished_tasks_per_user": tasks}
    settings.CELLRUN = settings.CELLRUN.model_copy(update=change)


@pytest.fixture(autouse=True)
def _new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cap, "_bounds", {})


def is_accepted(loop: Loop, replicas: int) -> bool:
    try:
        loop.submit(replicas=replicas)
    except JobsRefused:
        return False
    return True


def end(loop: Loop, job: Job) -> None:
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    loop.converge()


@pytest.mark.parametrize("seed", range(BASE, BASE + 6))
def test_submission_is_accepted_exactly_while_its_tasks_fit(
    loop: Loop, settings: Any, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    print(f"seed {seed}")
    limit(settings, 8)
    draw = Random(seed)
    processes: list[dict[Any, Any]] = [{}, {}, {}]
    results = []
    for _ in range(40):
        monkeypatch.setattr(cap, "_bounds", draw.choice(processes))
        open_tasks = Task.objects.filter(finished_at=None).count()
        running = list(Job.objects.filter(finished_at=None).order_by("id"))
        if running and draw.random() < 0.3:
            end(loop, draw.choice(running))
            continue
        replicas = draw.randint(1, 4)
        results.append(is_accepted(loop, replicas))
        assert results[-1] == (open_tasks + replicas <= 8), (open_tasks, replicas)
    assert True in results
    assert False in results


def test_open_jobs_are_counted_once_for_many_submissions(loop: Loop) -> None:
    counts = []
    for _ in range(3):
        with CaptureQueriesContext(connection) as found:
            loop.submit(replicas=2)
        counts.append(sum("finished_at IS NULL" in query["sql"] for query in found))
    assert counts == [1, 0, 0]


def test_submission_that_was_rolled_back_takes_no_room(loop: Loop, settings: Any) -> None:
    limit(settings, 4)
    with transaction.atomic():
        assert is_accepted(loop, 3)
        assert is_accepted(loop, 1)
        transaction.set_rollback(True)
    assert is_accepted(loop, 4)
    assert not is_accepted(loop, 1)


def test_count_is_taken_again_after_a_minute(
    loop: Loop, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(settings, 4)
    assert is_accepted(loop, 1)
    # As after a restore of the database: ids of jobs are drawn a second time.
    [(owner, bound)] = cap._bounds.items()
    cap._bounds[owner] = cap._Bound(bound.open_tasks, bound.last_job + 1_000, bound.counted_at)
    assert is_accepted(loop, 3)
    monkeypatch.setattr(clock, "monotonic", lambda: cap.BOUND_SECONDS)
    assert not is_accepted(loop, 1)


def test_jobs_that_were_counted_are_not_read_again_in_a_table_without_statistics(
    loop: Loop,
) -> None:
    loop.submit()
    execute(
        """
        INSERT INTO controlplane_job
        SELECT (jsonb_populate_record(j, jsonb_build_object('id', j.id + n, 'guid', NULL))).*
        FROM controlplane_job j, generate_series(1, 2000) AS n
        """
    )
    execute("SELECT setval(pg_get_serial_sequence('controlplane_job', 'id'), 1000000)")
    table = "'controlplane_job'::regclass"
    execute(f"DELETE FROM pg_statistic WHERE starelid = {table}")
    execute(f"UPDATE pg_class SET reltuples = -1, relpages = 0 WHERE oid = {table}")
    for _ in range(2):  # the first one counts the copies
        with CaptureQueriesContext(connection) as captured:
            loop.submit()
    [statement] = [one["sql"] for one in captured if "pg_sequence_last_value" in one["sql"]]
    [(plans,)] = rows("EXPLAIN (ANALYZE, FORMAT JSON) " + statement.replace("%", "%%"))
    [plan] = decoded(plans)
    assert rows_of_jobs(plan["Plan"]) <= 10


def rows_of_jobs(node: dict[str, Any]) -> float:
    """Return how many rows of the jobs a plan read, those that a filter removed included."""
    read = sum(rows_of_jobs(child) for child in node.get("Plans", ()))
    if node.get("Relation Name") == "controlplane_job":
        removed = node.get("Rows Removed by Filter", 0)
        read += node["Actual Loops"] * (node["Actual Rows"] + removed)
    return read
