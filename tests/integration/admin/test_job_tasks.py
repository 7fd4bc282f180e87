"""The tasks on a job's page: each with its attempts, on one screen or page by page."""

import re
from html import unescape

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane.contract.states import TaskState as S
from controlplane.domain.state.states import COLOURS
from controlplane.models import Attempt, Cell, Job, Pool, Project, Task, TaskGroup
from tests.integration.admin.rows import add_attempts, make_job
from tests.integration.admin.test_pages import page, words

pytestmark = pytest.mark.django_db

HOSTILE = "<script>alert('here')</script>"


def job_of(states: list[S]) -> Job:
    project, owner = Project.objects.get(), User.objects.get(username="ann")
    return make_job(project, Pool.objects.get(name="default"), owner, states)


def shown(browser: Client, job: Job, query: str = "") -> str:
    """The section of the job's page that has its tasks, as it is sent."""
    answer = browser.get(f"/admin/controlplane/job/{job.pk}/change/{query}")
    assert answer.status_code == 200
    [section] = re.findall(
        r'<section class="cellrun-section" id="tasks">.*?</section>',
        answer.content.decode(),
        flags=re.DOTALL,
    )
    return str(section)


def row_of(browser: Client, task: Task) -> str:
    """The line of a task in that section."""
    lines = re.findall("<tr>.*?</tr>", shown(browser, task.job), flags=re.DOTALL)
    [line] = [line for line in lines if f"/task/{task.pk}/change/" in line]
    return str(line)


def attempts_in(html: str) -> list[str]:
    """The attempts of a piece of the page, in its order."""
    return re.findall("<li>.*?</li>", html, flags=re.DOTALL)


def names_in(html: str) -> list[str]:
    return re.findall(r">(main\.\d+)</a>", html)


def linked_pages(html: str) -> list[str]:
    """The texts of the links to other pages of tasks, of the first of the equal lists."""
    [first, *_] = re.findall("<nav .*?</nav>", html, flags=re.DOTALL)
    return [words(link) for link in re.findall("<a .*?</a>", first, flags=re.DOTALL)]


def statements_of(browser: Client, job: Job) -> list[str]:
    with CaptureQueriesContext(connection) as caught:
        browser.get(f"/admin/controlplane/job/{job.pk}/change/")
    return [item["sql"] for item in caught.captured_queries]


def test_each_attempt_of_a_task_has_its_state_badge_and_links_to_its_page(
    operator: Client,
) -> None:
    [task] = Task.objects.filter(job=job_of([S.RUNNING]))
    add_attempts(task, [S.WORKER_FAILED, S.PREEMPTED, S.FAILED, S.RUNNING])
    found = attempts_in(row_of(operator, task))
    by_number = dict(enumerate(reversed(found), start=1))
    states = [S.PREEMPTED, S.WORKER_FAILED, S.PREEMPTED, S.FAILED, S.RUNNING]
    assert len(found) == len(states)
    for number, state in enumerate(states, start=1):
        attempt, line = Attempt.objects.get(task=task, number=number), by_number[number]
        name = state.name.lower()
        badge = f'class="cellrun-status status-{name}" style="--status: {COLOURS[state]}">{name}<'
        link = re.search(r'<a [^>]*href="(.*?)".*?</a>', line, flags=re.DOTALL)
        assert link is not None
        assert link[1] == f"/admin/controlplane/attempt/{attempt.pk}/change/"
        assert badge in link[0]
        assert words(link[0]).startswith(f"{number} ")
        assert f'/admin/controlplane/cell/{attempt.cell_id}/change/">cell-ready</a>' in line


def test_a_worker_failure_is_annotated_and_an_end_has_reason_and_exit_code(
    operator: Client,
) -> None:
    [task] = Task.objects.filter(job=job_of([S.RUNNING]))
    add_attempts(task, [S.WORKER_FAILED, S.PREEMPTED, S.KILLED, S.FAILED, S.SUCCEEDED])
    lines = [words(line) for line in attempts_in(row_of(operator, task))]
    assert lines == [
        "6 succeeded cell-ready exit 0",
        "5 failed cell-ready exit 3 its program ended with a non-zero exit status",
        "4 killed cell-ready task was cancelled",
        "3 preempted cell-ready preempted by more important work",
        "2 worker_failed (worker failure) cell-ready cell disappeared before completion",
        "1 preempted cell-ready preempted by more important work",
    ]


def test_minimum_is_shown_as_gangs_and_final_states_use_it(operator: Client) -> None:
    job = job_of([S.RUNNING] * 3)
    group = TaskGroup.objects.get(job=job)

    def minimum() -> tuple[str, bool]:
        html = page(operator, f"/admin/controlplane/job/{job.pk}/change/")
        row = re.search(r"<tr>\s*<td>main</td>.*?</tr>", html, flags=re.DOTALL)
        assert row is not None
        cells = re.findall(r"<td>(.*?)</td>", row[0], flags=re.DOTALL)
        return words(cells[3]), "tasks that must succeed 2" in words(html)

    assert minimum() == ("all", False)
    TaskGroup.objects.filter(pk=group.pk).update(min_available=2)
    Job.objects.filter(pk=job.pk).update(explicit_minimum=True, min_available=2)
    assert minimum() == ("2", True)
    Job.objects.filter(pk=job.pk).update(explicit_minimum=False, coscheduled=True)
    assert minimum() == ("2", False)


def test_building_attempt_shows_its_phase(operator: Client) -> None:
    task = Task.objects.get(job=Job.objects.get(), state=S.BUILDING)
    [line] = attempts_in(row_of(operator, task))
    assert words(line) == "1 building pulling 40 % cell-ready"


def test_a_task_that_was_never_placed_has_no_attempts(operator: Client) -> None:
    task = Task.objects.get(job=Job.objects.get(), state=S.PENDING)
    assert attempts_in(row_of(operator, task)) == []


def test_newest_ten_attempts_are_shown_with_a_link_to_all(operator: Client) -> None:
    first, second = Task.objects.filter(job=job_of([S.RUNNING] * 2)).order_by("pk")
    add_attempts(first, [S.PREEMPTED] * 36)
    add_attempts(second, [S.PREEMPTED] * 9)
    row = row_of(operator, first)
    numbers = [words(line).split()[0] for line in attempts_in(row)]
    assert numbers == [str(number) for number in range(37, 27, -1)]
    link = re.search(r'<a [^>]*href="([^"]*)">all 37 attempts</a>', row)
    assert link is not None
    assert "37 attempts" in words(operator.get(unescape(link[1])).content.decode())
    row = row_of(operator, second)
    assert len(attempts_in(row)) == 10
    assert "all 10" not in row


def test_a_tasks_page_links_to_its_attempts_beyond_the_newest(operator: Client) -> None:
    [task] = Task.objects.filter(job=job_of([S.RUNNING]))
    address = f"/admin/controlplane/task/{task.pk}/change/"
    add_attempts(task, [S.PREEMPTED] * 49)
    assert "all 50 attempts" not in words(operator.get(address).content.decode())
    add_attempts(task, [S.PREEMPTED])
    assert "all 51 attempts" in words(operator.get(address).content.decode())


def test_up_to_a_hundred_tasks_are_on_one_screen(operator: Client) -> None:
    section = shown(operator, job_of([S.RUNNING] * 100))
    assert names_in(section) == [f"main.{index}" for index in range(100)]
    assert "<nav" not in section


def test_more_than_a_hundred_tasks_are_paginated_by_a_query_parameter(operator: Client) -> None:
    job = job_of([S.RUNNING] * 110)
    first = shown(operator, job)
    assert names_in(first) == [f"main.{index}" for index in range(25)]
    assert "1 to 25 of 110" in words(first)
    assert linked_pages(first) == ["2", "3", "4", "5", "next"]
    [address] = set(re.findall(r'href="([^"]*)">2</a>', first))
    assert address == "?tasks=2#tasks"
    second = shown(operator, job, "?tasks=2")
    assert names_in(second) == [f"main.{index}" for index in range(25, 50)]
    assert linked_pages(second) == ["previous", "1", "3", "4", "5", "next"]
    last = shown(operator, job, "?tasks=5")
    assert names_in(last) == [f"main.{index}" for index in range(100, 110)]
    assert "101 to 110 of 110" in words(last)
    assert linked_pages(last) == ["previous", "1", "2", "3", "4"]


@pytest.mark.parametrize(
    ("query", "begin"),
    [("?tasks=6", 100), ("?tasks=0", 100), ("?tasks=-1", 100), ("?tasks=x", 0), ("?tasks=", 0)],
)
def test_page_number_out_of_range_shows_an_existing_page(
    operator: Client, query: str, begin: int
) -> None:
    assert names_in(shown(operator, job_of([S.RUNNING] * 101), query))[0] == f"main.{begin}"


def test_long_pagination_links_the_first_last_and_neighbouring_pages(operator: Client) -> None:
    job = job_of([S.PENDING])
    [group] = job.groups.all()
    Task.objects.bulk_create(
        Task(job=job, group=group, shape_id=group.shape_id, index=index, updated_at=job.created_at)
        for index in range(1, 2_000)
    )
    job.groups.update(counts=[0, 0, 2_000, *group.counts[3:]], task_count=2_000)
    middle = shown(operator, job, "?tasks=10")
    assert names_in(middle)[0] == "main.225"
    assert linked_pages(middle) == ["previous", "1", "8", "9", "11", "12", "80", "next"]


def test_statement_count_does_not_grow_with_the_number_of_tasks(
    operator: Client,
) -> None:
    few = job_of([S.PENDING, S.RUNNING, S.FAILED])
    many = job_of([S.FAILED] + [S.PENDING, S.RUNNING] * 125)
    for task in Task.objects.filter(job__in=(few, many), state=S.RUNNING)[:30]:
        add_attempts(task, [S.WORKER_FAILED, S.FAILED] * 10)
    assert len(statements_of(operator, many)) == len(statements_of(operator, few))
    large = ('"usage",', '"details"', '"launch"')
    assert not [one for one in statements_of(operator, many) if any(name in one for name in large)]


def test_reported_messages_are_escaped_and_truncated(operator: Client) -> None:
    [task] = Task.objects.filter(job=job_of([S.RUNNING]))
    add_attempts(task, [S.FAILED] * 3, message=f"{HOSTILE}\n{'long ' * 300}")
    add_attempts(task, [S.SUCCEEDED], result=f"{HOSTILE} {'x' * 9_000}")
    Task.objects.filter(pk=task.pk).update(state=S.SUCCEEDED, finished_at=task.updated_at)
    Cell.objects.filter(name="cell-ready").update(name=HOSTILE)
    row = row_of(operator, task)
    assert "<script" not in row
    assert row.count("&lt;script&gt;alert(&#x27;here&#x27;)&lt;/script&gt;") == 5 + 3 + 1
    assert "long" in row
    assert len(row) < 5_000
