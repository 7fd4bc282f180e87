"""The overview: each count links to what it counts, at a cost that does not grow with the work."""

import json
import re
from datetime import datetime, timedelta
from html import unescape
from typing import Any
from urllib.parse import unquote

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane import clock
from controlplane.contract.states import TaskState as S
from controlplane.domain.convergence.latencies import BOUNDS, bucket_of
from controlplane.domain.state.states import Band
from controlplane.models import (
    Attempt,
    Cell,
    Job,
    Pool,
    PoolSample,
    Project,
    Shape,
    Task,
    TaskGroup,
)
from controlplane.queries.pages import work
from controlplane.queries.sql import execute
from tests.integration.admin.rows import NOW, make_job
from tests.integration.admin.test_pages import address_of, page, words
from tests.integration.loop.test_due_queries import rows_read

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def fixed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now", lambda: NOW)


def add_job(states: list[S], pool: str = "default") -> Job:
    owner = User.objects.get(username="ann")
    return make_job(Project.objects.get(), Pool.objects.get(name=pool), owner, states)


def add_sample(at: datetime, **figures: Any) -> PoolSample:
    nothing: dict[str, Any] = {
        "pool": Pool.objects.get(name="default"),
        "waiting": [0, 0, 0],
        "stuck": [0, 0, 0],
        "held": [0, 0, 0],
        "latencies": [0] * (len(BOUNDS) + 1),
    }
    return PoolSample.objects.create(at=at, **nothing | figures)


def section(html: str, title: str) -> str:
    """Return the part of the page below a heading."""
    return html.split(f"<h2>{title}</h2>")[1].split("</section>")[0]


def counts_of(html: str) -> dict[str, tuple[int, str]]:
    """Return the counts of a bar by name, each with its address."""
    found = re.findall(r'href="([^"]*)"><b>(\d+)</b> ([a-z ]+)<', html)
    return {name: (int(number), unescape(address)) for address, number, name in found}


def test_jobs_with_invalid_bands_are_counted_and_leave_the_queue_readable(
    operator: Client,
) -> None:
    add_job([S.PENDING, S.RUNNING])
    before = counts_of(section(page(operator, "/admin/"), "Open work"))
    assert before["waiting"][0] > 0
    Job.objects.update(band=7)
    Shape.objects.update(band=7)
    after = counts_of(section(page(operator, "/admin/"), "Open work"))
    assert {name: count for name, (count, _) in after.items()} == {
        name: count for name, (count, _) in before.items()
    }
    pool = Pool.objects.get(name="default")
    queue = page(operator, f"/admin/controlplane/pool/{pool.pk}/queue/")
    assert "sweep" not in section(queue, "Waiting")


def test_work_is_counted_by_pool_and_band_and_each_count_links_to_its_list(
    operator: Client,
) -> None:
    add_job([S.PENDING] * 2 + [S.RUNNING] * 3)
    Shape.objects.create(
        id=8,
        pool=Pool.objects.get(name="gpu"),
        band=Band.BATCH,
        owner=User.objects.get(username="ann"),
        project=Project.objects.get(),
        resources={},
        task_type="container",
        pending_reason={"code": "no_cell_matches", "text": "the pool has no cell"},
    )
    waiting = add_job([S.PENDING] * 4)
    TaskGroup.objects.filter(job=waiting).update(shape_id=8)
    Task.objects.filter(job=waiting).update(shape_id=8)
    bars = re.findall(r"<dt>(.*?)</dt>\s*<dd>(.*?)</dd>", page(operator, "/admin/"), re.DOTALL)
    found = {words(name): counts_of(bar) for name, bar in bars}
    assert {
        name: {part: number for part, (number, _) in counts.items()}
        for name, counts in found.items()
    } == {
        "default interactive": {"running": 4, "building": 1, "assigned": 1, "waiting": 3},
        "gpu batch": {"waiting": 4, "of these stuck": 4},
    }
    for counts in found.values():
        for number, address in counts.values():
            assert operator.get(address).context["cl"].result_count == number, address


def test_waiting_tasks_beyond_the_limit_are_those_of_the_last_sample(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_job([S.PENDING] * 4)
    add_sample(NOW - timedelta(seconds=15), waiting=[0, 70, 7], stuck=[0, 2, 0])
    add_sample(NOW, waiting=[0, 80, 7], stuck=[0, 2, 0])
    shown = words(section(page(operator, "/admin/"), "Open work"))
    assert "5 waiting" in shown
    assert "as of" not in shown
    monkeypatch.setattr(work, "COUNTED_AT_ONCE", 5)
    shown = words(section(page(operator, "/admin/"), "Open work"))
    assert "default interactive" in shown
    assert "80 waiting 2 of these stuck" in shown
    assert "default batch 7 waiting" in shown
    assert "as of 2026-11-20 12:00:00" in shown


def test_failures_of_the_last_hour_are_summed_by_reason_with_their_last_jobs(
    operator: Client,
) -> None:
    jobs = [add_job([S.FAILED]).pk for _ in range(5)]
    Job.objects.filter(pk=jobs[4]).update(deleted_at=NOW)

    def failing(minutes: float, **failures: tuple[int, int, list[int]]) -> None:
        listed = {
            reason: {"tasks": tasks, "retried": retried, "jobs": ids}
            for reason, (tasks, retried, ids) in failures.items()
        }
        add_sample(NOW - timedelta(minutes=minutes), failures=listed)

    failing(61, out_of_memory=(9, 9, [jobs[0]]))
    failing(30, exit_status=(1, 0, [jobs[0]]))
    failing(20, exit_status=(2, 1, [jobs[1], jobs[2]]), image_error=(0, 7, [jobs[3]]))
    failing(10, exit_status=(1, 1, [jobs[4], jobs[3]]))
    shown = section(page(operator, "/admin/"), "Failures of the last hour")
    rows = re.findall(r"<tr><td class=.*?</tr>", shown)
    assert [words(row) for row in rows] == [
        f"its image does not exist, may not be read, or is malformed 0 7 sweep ({jobs[3]})",
        f"its program ended with a non-zero exit status 4 2 sweep ({jobs[3]}) sweep ({jobs[2]})",
    ]
    assert address_of(Job, Job.objects.get(pk=jobs[2])) in rows[1]
    address = (
        "/admin/controlplane/job/activity/?kind={}&reason=exit_status&since=2026-11-20T11:00:00Z"
    )
    for kind, number in (("failed+tasks", 4), ("retried", 2)):
        link = f'href="{address.format(kind)}">{number}</a>'
        assert link in unquote(rows[1]), rows[1]


def test_the_hour_has_a_value_for_each_minute_as_lines_and_as_a_table(operator: Client) -> None:
    buckets = [0] * (len(BOUNDS) + 1)
    buckets[bucket_of(7)] = 4
    figures: dict[str, Any] = {"latencies": buckets, "waiting": [1, 2, 3]}
    for seconds, held in ((30, 1), (45, 0)):
        at = NOW - timedelta(minutes=3, seconds=seconds)
        add_sample(at, started=4, succeeded=2, failed=1, held=[held, 0, 0], **figures)
    add_sample(NOW - timedelta(minutes=61), started=50)
    answer = operator.get("/admin/")
    tasks, latency, open_work = answer.context["charts"]
    times = json.loads(tasks["times"])
    assert len(times) == 60
    assert tasks["coverage"] == "There are samples for only 1 of 60 minutes."
    assert times[-1] == (NOW - timedelta(minutes=1)).timestamp() * 1000
    started, succeeded, failed = json.loads(tasks["values"])
    # Minutes without samples have no figures, not zeros.
    assert [n for n, value in enumerate(started) if value is not None] == [56]
    assert (started[56], succeeded[56], failed[56]) == (8, 4, 2)
    median, most = json.loads(latency["values"])
    assert median[56] == pytest.approx(7.5)
    assert most[56] == pytest.approx(9.75)
    assert median[55] is None
    assert json.loads(open_work["values"])[1][56] == 6
    shown = unescape(answer.content.decode()).replace("\xa0", " ")
    assert "8 started, 4 succeeded, 2 failed, 0 killed" in shown
    assert "half of the tasks within 7.50 s, 95 % within 9.75 s" in shown
    assert "at most 0.5 on cells and 6 waiting (average of a minute)" in shown
    table = shown.split("Tasks per minute as a table")[1].split("</details>")[0]
    assert "2026-11-20 11:56:00 8 4 2" in words(table)
    assert "2026-11-20 11:55:00" not in table


def test_an_hour_with_samples_does_not_report_how_many(operator: Client) -> None:
    for minute in range(1, 61):
        add_sample(NOW - timedelta(minutes=minute))
    assert "There are samples" not in page(operator, "/admin/")


def test_the_oldest_waiting_task_is_the_one_that_could_start_first(operator: Client) -> None:
    Task.objects.filter(state=S.PENDING).delete()
    jobs = {}
    for name, minutes in (("young", 1), ("old", 9), ("returned", 90), ("later", -5), ("off", 50)):
        jobs[name] = add_job([S.PENDING, S.RUNNING])
        Job.objects.filter(pk=jobs[name].pk).update(name=name)
        since = NOW - timedelta(minutes=minutes)
        TaskGroup.objects.filter(job=jobs[name]).update(startable_at=since)
        Task.objects.filter(job=jobs[name]).update(updated_at=since)
    Job.objects.filter(name="old").update(state=S.PENDING)
    waiting = Task.objects.filter(state=S.PENDING)
    waiting.filter(job=jobs["returned"]).update(updated_at=NOW - timedelta(minutes=3))
    waiting.filter(job=jobs["off"]).update(not_before=NOW + timedelta(minutes=1))
    found = operator.get("/admin/").context["oldest"]
    assert [str(row["job"]).split(">")[1].split(" ")[0] for row in found] == [
        "old",
        "returned",
        "young",
    ]
    assert "lacks 1.5 of 2 cores" in found[0]["reason"]
    assert address_of(Task, waiting.get(job=jobs["old"])) in found[0]["task"]


def test_the_longest_running_attempts_are_listed_with_their_cells(operator: Client) -> None:
    job = add_job([S.RUNNING, S.RUNNING, S.BUILDING])
    first, second = Attempt.objects.filter(job=job, state=S.RUNNING).order_by("pk")
    Attempt.objects.filter(pk=second.pk).update(started_at=NOW - timedelta(hours=2))
    Attempt.objects.filter(pk=first.pk).update(started_at=NOW - timedelta(hours=1))
    found = operator.get("/admin/").context["longest"]
    assert address_of(Task, second.task) in found[0]["task"]
    assert address_of(Task, first.task) in found[1]["task"]
    assert len(found) == 3
    assert "cell-ready" in found[0]["cell"]


def test_cells_have_used_reserved_and_free_resources(operator: Client) -> None:
    job = add_job([S.PENDING] * 3)
    cell = Cell.objects.get(name="cell-ready")
    nominated = Task.objects.filter(job=job)
    nominated.update(nominated_cell_id=cell.pk, nominated_until=NOW + timedelta(minutes=1))
    over = nominated.earliest("pk")
    Task.objects.filter(pk=over.pk).update(nominated_until=NOW)
    shown = section(page(operator, "/admin/"), "Cells")
    [ready] = [item for item in shown.split("<li") if "cell-ready" in item]
    # Three attempts of the installation are on it, each with 0.1 cpu and 32 MiB.
    assert "0.3 of 2 used, 0.2 reserved, 1.5 free" in words(ready)
    assert "96 MiB of 2 GiB used, 64 MiB reserved, 1888 MiB free" in words(ready)
    assert "width: 15.0%" in ready
    assert "width: 10.0%" in ready
    names = re.findall(r">(cell-[a-z]+)<", shown)
    assert names[-1] == "cell-ready"  # those that take no work come first


def test_cell_that_takes_no_work_has_nothing_free(operator: Client) -> None:
    shown = section(page(operator, "/admin/"), "Cells").split("<li")
    found = {re.findall(r">(cell-[a-z]+)<", item)[0]: words(item) for item in shown[1:]}
    assert [name for name, text in found.items() if "free" in text] == ["cell-ready"]
    assert "0 of 2 used" in found["cell-lost"]


def test_statements_do_not_grow_and_read_no_whole_table(operator: Client) -> None:
    """Of 35,000 jobs, the 5,000 newest wait."""

    def statements() -> list[dict[str, str]]:
        with CaptureQueriesContext(connection) as caught:
            page(operator, "/admin/")
        return caught.captured_queries

    few = statements()
    for turn in range(6):
        pool = Pool.objects.create(name=f"pool-{turn}")
        add_job([S.PENDING, S.RUNNING, S.FAILED])
        add_sample(
            NOW - timedelta(minutes=turn),
            pool=pool,
            failures={"exit_status": {"tasks": 1, "retried": 0, "jobs": [1]}},
        )
    ended, waiting = add_job([S.SUCCEEDED]), add_job([S.PENDING])
    Job.objects.filter(pk=ended.pk).update(state=S.SUCCEEDED, finished_at=NOW)
    Job.objects.filter(pk=waiting.pk).update(state=S.PENDING)
    _copy_job(ended, "-100000 + n", 30_000)
    _copy_job(waiting, "100000 + n", 5_000)
    many = statements()
    assert len(many) <= len(few) + 2
    assert len(many) <= 34, [item["sql"] for item in many]
    read = {}
    for statement in many:
        with connection.cursor() as cursor:
            explained = f"EXPLAIN (ANALYZE, FORMAT JSON) {statement['sql']}"
            cursor.execute(explained.replace("%", "%%"))
            [(plans,)] = cursor.fetchall()
        [plan] = json.loads(plans) if isinstance(plans, str) else plans
        read[statement["sql"]] = rows_read(plan["Plan"])
    assert {sql: count for sql, count in read.items() if count > 10_000} == {}


def _copy_job(job: Job, new_id: str, number: int) -> None:
    """Copy a job of one task so many times, with its group, task, attempt and history."""
    copied: dict[str, dict[str, str]] = {
        "job": {"id": new_id},
        "taskgroup": {"id": new_id, "job_id": new_id},
        "task": {"id": new_id, "job_id": new_id, "group_id": new_id},
        "attempt": {"uid": "gen_random_uuid()", "task_id": new_id, "job_id": new_id},
        "transition": {
            "id": "nextval(pg_get_serial_sequence('controlplane_transition', 'id'))",
            "job_id": new_id,
        },
    }
    for name, changed in copied.items():
        table = f"controlplane_{name}"
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {table} LIMIT 0")
            columns = [column.name for column in cursor.description]
        values = ", ".join(changed.get(column, f'"{column}"') for column in columns)
        listed = ", ".join(f'"{column}"' for column in columns)
        key = "id" if name == "job" else "job_id"
        execute(
            f"INSERT INTO {table} ({listed}) SELECT {values}"
            f" FROM {table}, generate_series(1, %s) AS n WHERE {key} = %s",
            [number, job.pk],
        )
        execute(f"ANALYZE {table}")
