"""The grid of a job's tasks and the waterfall of attempts."""

import json
import re
from datetime import timedelta
from html import unescape
from itertools import pairwise
from typing import Any

import pytest
from django.test import Client

from controlplane import clock
from controlplane.admin.sections import waterfall
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import TaskState as S
from controlplane.domain.state.states import COLOURS
from controlplane.models import Attempt, Job, Task
from controlplane.queries.pages.task_states import find_task_runs
from tests.integration.admin.rows import NOW, add_attempts
from tests.integration.admin.test_job_tasks import job_of
from tests.integration.admin.test_pages import address_of, page, words
from workers.attempt import pipeline

pytestmark = pytest.mark.django_db


def document_of(browser: Client, job: Job) -> dict[str, Any]:
    html = browser.get(address_of(Job, job)).content.decode()
    [text] = re.findall(r'data-task-grid="([^"]*)"', html)
    found: dict[str, Any] = json.loads(unescape(text))
    return found


def squares_of(document: dict[str, Any]) -> dict[int, tuple[str, str]]:
    """The name and the state of each square, by the id of its task."""
    states, found = document["states"], {}
    for group in document["groups"]:
        for first_id, first_index, letters in group["runs"]:
            for place, letter in enumerate(letters):
                name = f"{group['name']}.{first_index + place}"
                found[first_id + place] = (name, states[letter][0])
    return found


def expected_squares(job: Job) -> dict[int, tuple[str, str]]:
    return {
        task.pk: (f"{task.group.name}.{task.index}", S(task.state).name.lower())
        for task in Task.objects.filter(job=job).select_related("group")
    }


def test_each_task_is_a_square_with_its_state(operator: Client) -> None:
    job = job_of(list(S))
    document = document_of(operator, job)
    assert squares_of(document) == expected_squares(job)
    assert len(document["groups"][0]["runs"]) == 1
    colours = {name: colour for name, colour, _ in document["states"].values()}
    assert colours == {state.name.lower(): colour for state, colour in COLOURS.items()}


def test_gaps_in_ids_and_indexes_keep_the_names(operator: Client) -> None:
    job = job_of([S.FAILED, S.SUCCEEDED] * 6)
    tasks = list(Task.objects.filter(job=job).order_by("index"))
    # As in a rerun of some tasks, whose ids another job interleaved: id and index skip together.
    for task in (tasks[2], tasks[7], tasks[8]):
        task.delete()
    for task in tasks[9:]:
        Task.objects.filter(pk=task.pk).update(index=task.index + 40)
    assert squares_of(document_of(operator, job)) == expected_squares(job)


def test_the_grid_of_many_tasks_is_small(operator: Client) -> None:
    job = job_of([S.PENDING])
    group = job.groups.get()
    Task.objects.bulk_create(
        Task(
            job=job, group=group, shape_id=group.shape_id, index=index, state=S.PENDING,
            updated_at=NOW,
        )
        for index in range(1, 3000)
    )  # fmt: skip
    runs = find_task_runs(job.pk)
    assert sum(len(run.states) for run in runs) == 3000
    assert len(runs) <= 2


def test_a_job_of_one_task_has_no_grid(operator: Client) -> None:
    assert "data-task-grid" not in page(operator, address_of(Job, job_of([S.RUNNING])))


STEPS = {"workspace": 1, "pull": 4, "create": 1, "start": 2, "wait": 12, "collect": 1, "outputs": 3}


def bars_of(html: str) -> list[list[tuple[float, float, str]]]:
    """Left edge, width and text of the bars of each line, in percent."""
    lines = re.findall(r'<span class="cellrun-lane" .*?</li>', html, flags=re.DOTALL)
    pattern = r'left: ([\d.]+)%; width: ([\d.]+)%; --status: #\w+" title="([^"]*)"'
    return [
        [(float(left), float(width), text) for left, width, text in re.findall(pattern, line)]
        for line in lines
    ]


def timed_attempt(**changes: Any) -> Attempt:
    """An attempt placed at second 0, started at 10 and ended at 22."""
    [task] = Task.objects.filter(job=job_of([S.SUCCEEDED]))
    times = {
        "created_at": NOW,
        "started_at": NOW + timedelta(seconds=10),
        "finished_at": NOW + timedelta(seconds=22),
        "usage": {"steps": STEPS},
    }
    Attempt.objects.filter(pk=task.attempt_uid).update(**times | changes)
    return Attempt.objects.get(pk=task.attempt_uid)


@pytest.mark.parametrize(
    "usage",
    [
        {"cpu_seconds": "x", "memory_peak_mib": [1], "pulled_bytes": {}, "own": {"a": 1}},
        {"cpu_seconds": 1e308, "memory_peak_mib": 1e308, "pulled_bytes": 1e308},
        {"cpu_seconds": 2**53, "memory_peak_mib": 2**53, "disk_peak_mib": 2**53},
        {"steps": 1},
        {"steps": {"run": "x", "pull": 1e308, "outputs": 1e9, "collect": -1}},
    ],
)
def test_wrong_usage_in_the_report_of_a_cell_breaks_no_page(
    operator: Client, usage: dict[str, Any]
) -> None:
    body = {"uid": "u", "seq": 1, "state": int(S.SUCCEEDED), "usage": usage}
    attempt = timed_attempt(usage=AttemptReport.read(body).usage)
    for row in (attempt, attempt.task, attempt.job):
        assert page(operator, address_of(type(row), row))


@pytest.mark.parametrize("model", [Job, Task])
def test_the_steps_of_an_attempt_are_bars_on_the_time_axis(
    operator: Client, model: type[Job | Task]
) -> None:
    attempt = timed_attempt()
    html = page(operator, address_of(model, attempt.job if model is Job else attempt.task))
    [bars] = bars_of(html)
    # The axis is 26 seconds long: 22 until the end, and 4 to collect the outputs.
    expected = [
        ("on the way", 0, 2),
        ("workspace", 2, 3),
        ("pull", 3, 7),
        ("create", 7, 8),
        ("start", 8, 10),
        ("run", 10, 22),
        ("collect", 22, 23),
        ("outputs", 23, 26),
    ]
    for (left, width, text), (name, begin, end) in zip(bars, expected, strict=True):
        assert left == pytest.approx(100 * begin / 26, abs=0.01)
        assert width == pytest.approx(100 * (end - begin) / 26, abs=0.01)
        assert words(text).replace("\xa0", " ") == f"{name} {end - begin:.2f} s"


def test_an_attempt_that_goes_on_ends_now(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    [task] = Task.objects.filter(job=job_of([S.RUNNING]))
    Attempt.objects.filter(pk=task.attempt_uid).update(started_at=NOW + timedelta(seconds=25))
    monkeypatch.setattr(clock, "now", lambda: NOW + timedelta(seconds=100))
    [bars] = bars_of(page(operator, address_of(Task, task)))
    assert [(round(left), round(width), text.split()[0]) for left, width, text in bars] == [
        (0, 25, "preparation"),
        (25, 75, "run"),
    ]


def test_steps_longer_than_the_time_before_the_start_are_cut(operator: Client) -> None:
    attempt = timed_attempt(started_at=NOW + timedelta(seconds=3))
    [bars] = bars_of(page(operator, address_of(Task, attempt.task)))
    edges = [(left, left + width) for left, width, _ in bars]
    assert all(left >= 0 and right <= 100.01 for left, right in edges)
    assert all(right <= following + 0.01 for (_, right), (following, _) in pairwise(edges))


def test_the_newest_attempts_are_shown_if_there_are_many(operator: Client) -> None:
    job = job_of([S.RUNNING] * 30)
    for task in Task.objects.filter(job=job):
        add_attempts(task, [S.FAILED, S.FAILED])
    html = page(operator, address_of(Job, job))
    assert f"the newest {waterfall.MAX_LINES}" in words(html)
    assert len(bars_of(html)) == waterfall.MAX_LINES


def test_each_step_of_a_cell_has_a_place_in_the_waterfall() -> None:
    assert set(pipeline.NAMES.values()) == set(waterfall.BEFORE)
