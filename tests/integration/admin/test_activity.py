"""The activity page: changes of all jobs or on one cell, by kind, in pages by history id."""

import re
from datetime import timedelta
from html import unescape

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane import clock
from controlplane.contract.states import TaskState as S
from controlplane.models import Attempt, Cell, Job, Task, Transition
from controlplane.queries.pages import activity
from tests.integration.admin.rows import NOW
from tests.integration.admin.test_job_tasks import job_of
from tests.integration.admin.test_pages import words

pytestmark = pytest.mark.django_db

ADDRESS = "/admin/controlplane/job/activity/"


def rows_of(browser: Client, query: str = "") -> list[str]:
    """What a reader sees of each change."""
    answer = browser.get(f"{ADDRESS}?{query}")
    assert answer.status_code == 200
    html = unescape(answer.content.decode())
    table = html.partition("<tbody>")[2].partition("</tbody>")[0]
    return [words(row) for row in re.findall(r"<tr>.*?</tr>", table, re.DOTALL)]


def note(job: Job, reason: str, **columns: object) -> Transition:
    return Transition.objects.create(job_id=job.pk, reason=reason, at=clock.now(), **columns)


def test_changes_of_all_jobs_are_listed_newest_first(operator: Client) -> None:
    job = job_of([S.PENDING])
    Transition.objects.all().delete()
    task = Task.objects.get(job=job)
    note(job, "submitted", to_state=S.PENDING, actor="ann")
    note(job, "held", message="too early", actor="ann")
    note(job, "placed", task_id=task.pk, from_state=S.PENDING, to_state=S.ASSIGNED)
    placed, held, submitted = rows_of(operator)
    assert f"({job.pk}) main.0" in placed
    assert "pending → assigned placed on a cell" in placed
    assert "too early" in held
    assert "pending submitted" in submitted


def test_a_cell_has_only_the_changes_of_its_attempts(operator: Client) -> None:
    mine, other = Cell.objects.order_by("name")[:2]
    first, second = Attempt.objects.order_by("uid")[:2]
    Attempt.objects.filter(pk=first.pk).update(cell=mine)
    Attempt.objects.filter(pk=second.pk).update(cell=other)
    Transition.objects.all().delete()
    job = Job.objects.get(pk=first.job_id)
    for attempt in (first, second):
        note(job, "started", task_id=attempt.task_id, attempt_uid=attempt.pk, actor="cell")
    note(job, "held")
    [found] = rows_of(operator, f"cell={mine.name}")
    assert mine.name in found
    assert len(rows_of(operator)) == 3
    assert operator.get(f"{ADDRESS}?cell=unknown").status_code == 404


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("submitted", {"submitted"}),
        ("started", {"started"}),
        ("succeeded", {"succeeded"}),
        ("failed", {"exit_status", "try"}),
        ("failed tasks", {"exit_status"}),
        ("stopped", {"cancelled"}),
        ("ended jobs", {"tasks_decided"}),
        ("held and moved", {"held", "moved"}),
    ],
)
def test_chips_select_a_kind_of_changes(installation: None, kind: str, expected: set[str]) -> None:
    job = job_of([S.PENDING])
    Transition.objects.all().delete()
    task = Task.objects.get(job=job).pk
    note(job, "submitted", to_state=S.PENDING)
    note(job, "started", task_id=task, from_state=S.BUILDING, to_state=S.RUNNING)
    note(job, "runner_phase", task_id=task, from_state=S.RUNNING, to_state=S.RUNNING)
    note(job, "succeeded", task_id=task, from_state=S.RUNNING, to_state=S.SUCCEEDED)
    note(job, "exit_status", task_id=task, from_state=S.RUNNING, to_state=S.FAILED)
    note(
        job,
        "try",
        task_id=task,
        from_state=S.RUNNING,
        to_state=S.PENDING,
        attempt_state=S.WORKER_FAILED,
    )
    note(job, "cancelled", task_id=task, from_state=S.RUNNING, to_state=S.KILLED)
    note(job, "tasks_decided", from_state=S.RUNNING, to_state=S.FAILED)
    note(job, "held")
    note(job, "moved")
    found = activity.load_activity(activity.ActivityFilter(kind=kind), limit=100)
    reasons = {change.reason for change, _ in found.changes}
    assert reasons - {"tasks_decided"} == expected - {"tasks_decided"}
    assert expected <= reasons


def test_pages_follow_each_other_by_id_and_read_a_bounded_part(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activity, "SCANNED", 10)
    job = job_of([S.PENDING])
    Transition.objects.all().delete()
    held = note(job, "held").pk
    for _ in range(24):
        note(job, "other")
    first = activity.load_activity(activity.ActivityFilter(kind="held and moved"), limit=5)
    assert list(first.changes) == []
    assert first.following == Transition.objects.order_by("-pk")[9].pk
    pages, before = [], None
    while True:
        page = activity.load_activity(activity.ActivityFilter(), before=before, limit=4)
        pages += [change.id for change, _ in page.changes]
        before = page.following
        if before is None:
            break
    assert pages == sorted(Transition.objects.values_list("pk", flat=True), reverse=True)
    last = activity.load_activity(
        activity.ActivityFilter(kind="held and moved"), before=held + 1, limit=5
    )
    assert ([change.id for change, _ in last.changes], last.following) == ([held], None)
    for wrong in ("before=x", "before=99999999999999999999", "kind=unknown"):
        assert operator.get(f"{ADDRESS}?{wrong}").status_code == 404


def test_changes_of_deleted_jobs_are_left_out(operator: Client) -> None:
    job = job_of([S.PENDING])
    Job.objects.filter(pk=job.pk).update(deleted_at=NOW)
    assert not any(f"({job.pk})" in row for row in rows_of(operator))


def test_the_number_of_statements_does_not_grow_with_the_changes(operator: Client) -> None:
    job = job_of([S.PENDING])
    counts = []
    for _ in range(2):
        with CaptureQueriesContext(connection) as captured:
            rows_of(operator)
        counts.append(len(captured))
        for _ in range(20):
            note(job, "held")
    assert counts[0] == counts[1]


def test_failures_of_the_hour_lead_to_what_they_count(operator: Client) -> None:
    job = job_of([S.FAILED, S.PENDING])
    Transition.objects.all().delete()
    failed, pending = Task.objects.filter(job=job).order_by("index")
    now, running = clock.now(), {"from_state": S.RUNNING, "attempt_state": S.FAILED}
    columns = {"task_id": failed.pk, "to_state": S.FAILED, **running}
    note(job, "exit_status", **columns, message="counted")
    note(job, "exit_status", **{**columns, "task_id": pending.pk, "to_state": S.PENDING})
    note(job, "out_of_memory", **columns)
    old = note(job, "exit_status", **columns)
    Transition.objects.filter(pk=old.pk).update(at=now - timedelta(hours=2))
    filters = f"reason=exit_status&since={now - timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
    [found] = rows_of(operator, f"kind=failed+tasks&{filters}")
    assert "counted" in found
    [retried] = rows_of(operator, f"kind=retried&{filters}")
    assert "main.1" in retried
    html = operator.get(f"{ADDRESS}?kind=failed&{filters}").content.decode()
    assert "its program ended with a non-zero exit status" in html
    for wrong in ("reason=nonsense", "since=yesterday"):
        assert operator.get(f"{ADDRESS}?{wrong}").status_code == 404
