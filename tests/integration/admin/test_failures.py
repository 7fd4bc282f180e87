"""A job's page begins with what failed: tasks by reason, and the last lines of the newest."""

import re
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane.admin.sections import output
from controlplane.contract.states import TaskState as S
from controlplane.models import Attempt, Job, Task
from controlplane.storage.folder import append_log
from controlplane.storage.interface import StoreUnavailable
from tests.integration.admin.rows import NOW, add_attempts
from tests.integration.admin.test_job_tasks import job_of
from tests.integration.admin.test_pages import address_of, page, words

pytestmark = pytest.mark.django_db


def failures(html: str) -> list[str]:
    """The lines of the section, as they are sent."""
    [section] = re.findall(r'<section [^>]*id="failures">.*?</section>', html, flags=re.DOTALL)
    return re.findall(r"<li>.*?</li>", section, flags=re.DOTALL)


def fail(task: Task, reason: str, *, state: S = S.FAILED, minute: int = 0) -> Attempt:
    """End a task for a reason; return its attempt."""
    ended = NOW + timedelta(minutes=minute)
    Task.objects.filter(pk=task.pk).update(state=state, failure_reason=reason, finished_at=ended)
    return Attempt.objects.get(pk=task.attempt_uid)


def failed_job() -> tuple[Job, list[Task]]:
    job = job_of([S.FAILED] * 6)
    return job, list(Task.objects.filter(job=job).order_by("pk"))


def test_tasks_are_counted_by_reason_and_killed_ones_come_last(operator: Client) -> None:
    job, tasks = failed_job()
    for task in tasks[:3]:
        fail(task, "its job ended", state=S.KILLED)
    for task in tasks[3:5]:
        fail(task, "exit status 139")
    fail(tasks[5], "out of memory")
    lines = failures(page(operator, address_of(Job, job)))
    shown = [re.match(r"(\d+) × (\w+) (.*?) last:", words(line)) for line in lines]
    assert [found and found.groups() for found in shown] == [
        ("2", "failed", "exit status 139 (SIGSEGV, segmentation fault)"),
        ("1", "failed", "out of memory"),
        ("3", "killed", "its job ended"),
    ]


def test_a_count_links_to_the_list_of_these_tasks(operator: Client) -> None:
    job, tasks = failed_job()
    for task in tasks[:2]:
        fail(task, "can never be placed: needs 5 & more")
    [line] = [line for line in failures(page(operator, address_of(Job, job))) if "2 ×" in line]
    link = re.search(r'href="([^"]*)">2 ×', line)
    assert link is not None
    assert parse_qs(urlsplit(link[1]).query)["job__id__exact"] == [str(job.pk)]
    listed = operator.get(link[1])
    assert {row.pk for row in listed.context["cl"].result_list} == {task.pk for task in tasks[:2]}


def test_the_last_lines_of_the_newest_task_are_shown(operator: Client) -> None:
    job, tasks = failed_job()
    for minute, task in enumerate(tasks):
        attempt = fail(task, "exit status 3", minute=minute % 3)
        lines = [f"line {number} of {task.index}\n" for number in range(100)]
        append_log(attempt.pk, "stderr", offset=0, content="".join(lines).encode())
        append_log(attempt.pk, "stdout", offset=0, content=b"usual output\n")
    [line] = failures(page(operator, address_of(Job, job)))
    newest = tasks[5]
    assert "line 99 of 5" in line
    assert "line 90 of 5" in line
    assert "line 89 of 5" not in line
    assert "usual output" not in line
    assert f'/attempt/{newest.attempt_uid}/change/#stderr">attempt 1' in line
    assert f"/task/{newest.pk}/change/" in line


def test_stdout_is_shown_if_stderr_is_empty_and_long_lines_are_cut(operator: Client) -> None:
    job, tasks = failed_job()
    attempt = fail(tasks[0], "exit status 4")
    append_log(attempt.pk, "stdout", offset=0, content=b"x" * 50_000 + b"<end>\n")
    [line] = [line for line in failures(page(operator, address_of(Job, job))) if "status 4" in line]
    assert "<end>" in line
    assert len(line) < 10_000


def test_output_of_few_reasons_is_read(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    job, tasks = failed_job()
    for task in tasks:
        fail(task, f"exit status {task.index + 20}")
    read: list[Any] = []
    monkeypatch.setattr(
        "controlplane.admin.work.failures.find_last_lines",
        lambda uid: read.append(uid) or output.OutputTail("stderr", "a line"),
    )
    assert len(failures(page(operator, address_of(Job, job)))) == 6
    assert len(read) == 3


def test_a_store_that_does_not_answer_leaves_the_page(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Absent:
        def find_tail(self, *args: Any, **options: Any) -> int:
            raise StoreUnavailable("timed out")

    monkeypatch.setattr(output, "current_store", Absent)
    job, tasks = failed_job()
    assert "the store does not answer: timed out" in page(operator, address_of(Job, job))
    attempt = Attempt.objects.get(pk=tasks[0].attempt_uid)
    assert "the store does not answer" in page(operator, address_of(Attempt, attempt))


def test_a_job_without_failures_has_no_such_section(operator: Client) -> None:
    job = job_of([S.SUCCEEDED, S.RUNNING, S.PENDING])
    assert 'id="failures"' not in page(operator, address_of(Job, job))


def test_more_reasons_than_shown_are_counted(operator: Client) -> None:
    job = job_of([S.FAILED] * 11)
    for task in Task.objects.filter(job=job):
        fail(task, f"exit status {task.index + 20}")
    html = page(operator, address_of(Job, job))
    assert len(failures(html)) == 8
    assert "3 more reasons" in html


def test_output_needs_the_permission_to_view_attempts(operator: Client) -> None:
    job, tasks = failed_job()
    attempt = fail(tasks[0], "exit status 3", minute=5)
    append_log(attempt.pk, "stderr", offset=0, content=b"a secret line\n")
    user = User.objects.create_user("stig", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename="view_job"))
    browser = Client()
    browser.force_login(user)
    assert "a secret line" in page(operator, address_of(Job, job))
    shown = page(browser, address_of(Job, job))
    assert "exit status 3" in shown
    assert "a secret line" not in shown


def test_the_page_of_a_task_begins_with_its_failure(operator: Client) -> None:
    _, tasks = failed_job()
    attempt = fail(tasks[0], "exit status 139")
    append_log(attempt.pk, "stderr", offset=0, content=b"the last line\n")
    html = page(operator, address_of(Task, tasks[0]))
    [line] = failures(html)
    assert "exit status 139 (SIGSEGV, segmentation fault)" in words(line)
    assert "the last line" in line
    assert html.index("the last line") < html.index("consecutive crashes")
    [running] = Task.objects.filter(job=job_of([S.RUNNING]))
    assert 'id="failures"' not in page(operator, address_of(Task, running))


def test_open_tasks_that_are_retried_are_counted_with_their_last_failure(operator: Client) -> None:
    job = job_of([S.BUILDING] * 3 + [S.SUCCEEDED])
    first, second, third, ended = Task.objects.filter(job=job).order_by("pk")
    for task in (first, second, ended):
        Task.objects.filter(pk=task.pk).update(system_failure_count=2)
    add_attempts(second, [S.WORKER_FAILED, S.BUILDING])
    Attempt.objects.filter(task=second, number=2).update(message="pull: no such host")
    Task.objects.filter(pk=second.pk).update(updated_at=NOW + timedelta(minutes=1))
    Task.objects.filter(pk=third.pk).update(failure_count=1)
    lines = failures(page(operator, address_of(Job, job)))
    assert [words(line).split(" last:")[0] for line in lines] == [
        "1 × building open, after failures of the program",
        "2 × building open, after failures of cells, images or registries pull: no such host",
    ]
    link = re.search(r'href="([^"]*)">2 ×', lines[1])
    assert link is not None
    listed = operator.get(link[1]).context["cl"].result_list
    assert {row.pk for row in listed} == {first.pk, second.pk}


def test_statements_do_not_grow_with_failures(operator: Client) -> None:
    def count(job: Job) -> int:
        with CaptureQueriesContext(connection) as caught:
            page(operator, address_of(Job, job))
        return len(caught)

    few, many = job_of([S.FAILED] * 2), job_of([S.FAILED] * 40)
    for task in Task.objects.filter(job=many):
        fail(task, f"exit status {task.index % 30}")
    assert count(many) == count(few)
