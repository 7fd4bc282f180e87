"""S0.11: states have one name and one colour wherever people read them, and notes beside them.

Source: Iris, "Dashboard Display": the table of names and colours; "The job detail page shows
per-task attempt history. Each attempt has its own state badge, and worker failures are annotated
with '(worker failure)' in the attempt rows"; "Pending tasks display a pending_reason diagnostic
below the state badge".
"""

import io
import json
import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from rich.console import Console

from cellrun.display.render import job_page
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.tenancy.tokens import create_api_token
from controlplane.domain.roles import Role
from controlplane.domain.state.states import Reason
from controlplane.domain.state.transitions import Event
from controlplane.models import Job
from tests.scenarios.stage import Stage

# The table of the source; "prefix stripped, lowercase".
DISPLAY = {
    "pending": "#9a6700",
    "assigned": "#bc4c00",
    "building": "#8250df",
    "running": "#0969da",
    "succeeded": "#1a7f37",
    "failed": "#cf222e",
    "killed": "#57606a",
    "worker_failed": "#8250df",
    "unschedulable": "#cf222e",
    "preempted": "#bc4c00",
}
NO_RETRY = {"failure": 0, "preemption": 0}


class Reader:
    """Reads what the admin, the API and the command show of a job."""

    def __init__(self, stage: Stage) -> None:
        token = create_api_token(
            user=stage.owner, name="test", role=Role.SUBMITTER, now=stage.now()
        )
        self._headers = {"Authorization": f"Bearer {token}"}
        self._browser = Client()
        self._browser.force_login(User.objects.create_superuser("olga", password="x"))

    def api(self, path: str) -> Any:
        return json.loads(Client().get(f"/api/v1{path}", headers=self._headers).content)

    def html(self, address: str) -> str:
        answer = self._browser.get(f"/admin/controlplane/{address}")
        assert answer.status_code == 200
        return unescape(answer.content.decode())

    def text(self, address: str) -> str:
        """What a reader sees of a page of the admin."""
        return " ".join(re.sub(r"<[^>]*>", " ", self.html(address)).split())

    def terminal(self, job: Job) -> str:
        """What `cellrun job` prints on a terminal with colours."""
        tasks = self.api(f"/jobs/{job.pk}/tasks")["results"]
        out = io.StringIO()
        console = Console(file=out, width=300, force_terminal=True, color_system="truecolor")
        console.print(job_page(self.api(f"/jobs/{job.pk}"), tasks, len(tasks)))
        return out.getvalue()


@pytest.fixture
def reader(stage: Stage) -> Reader:
    return Reader(stage)


def ended(end: Callable[[Stage, Job], None]) -> Callable[[Stage], Job]:
    """A scene: a job of one task runs, and `end` happens to it."""

    def play(stage: Stage) -> Job:
        stage.cell()
        job, _ = stage.running(retries=NO_RETRY)
        end(stage, job)
        return job

    return play


def built(stage: Stage) -> Job:
    stage.cell()
    job, attempt = stage.placed()
    stage.build(attempt)
    return job


def placed(stage: Stage) -> Job:
    stage.cell()
    return stage.placed()[0]


def late(stage: Stage) -> Job:
    job = stage.submit_small(scheduling_timeout_seconds=10)
    stage.place()
    stage.wait(11)
    stage.place()
    stage.settle()
    return job


def cancel(stage: Stage, job: Job) -> None:
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=stage.now())


SCENES: dict[str, Callable[[Stage], Job]] = {
    "pending": lambda stage: stage.submit_small(),
    "assigned": placed,
    "building": built,
    "running": ended(lambda stage, job: None),
    "succeeded": ended(lambda stage, job: stage.succeed(stage.last(job))),
    "failed": ended(lambda stage, job: stage.fail(stage.last(job))),
    "killed": ended(cancel),
    "worker_failed": ended(lambda stage, job: stage.vanish(stage.last(job))),
    "unschedulable": late,
    "preempted": ended(lambda stage, job: stage.force(job, Event.PREEMPTED, Reason.PREEMPTED)),
}


@pytest.mark.parametrize("name", DISPLAY)
def test_states_have_one_name_and_colour_in_admin_and_terminal(
    stage: Stage, reader: Reader, name: str
) -> None:
    job = SCENES[name](stage)
    task, colour = stage.task(job), DISPLAY[name]
    assert reader.api(f"/tasks/{task.pk}")["state"] == name.upper()
    for address in ("task/", f"task/{task.pk}/change/", f"job/{job.pk}/change/"):
        [badge] = set(
            re.findall(
                rf'<span class="[^"]*status-{name}"[^>]*>{name}</span>', reader.html(address)
            )
        )
        assert colour in badge
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    assert f"38;2;{red};{green};{blue}m{name}" in reader.terminal(job)


def tried_often(stage: Stage) -> Job:
    """A job of one task that failed, was lost with its cell, and runs again."""
    stage.cell()
    job, attempt = stage.running(retries={"failure": 1})
    stage.fail(attempt)
    stage.wait(2)
    stage.place()
    stage.start(stage.last(job))
    stage.vanish(stage.last(job))
    stage.place()
    stage.start(stage.last(job))
    return job


def test_job_page_shows_every_attempt_with_its_state(stage: Stage, reader: Reader) -> None:
    job = tried_often(stage)
    for address in (f"job/{job.pk}/change/", f"task/{stage.task(job).pk}/change/"):
        html = reader.html(address)
        for attempt, name in zip(
            stage.attempts(job), ("failed", "worker_failed", "running"), strict=True
        ):
            # What failed, at the top of the page, links to attempts as well.
            after_links = html.split(f"/attempt/{attempt.pk}/change/")[1:]
            assert any(f"status-{name}" in text[:600] for text in after_links)


def test_only_the_failed_attempt_is_annotated_as_worker_failure(
    stage: Stage, reader: Reader
) -> None:
    job = tried_often(stage)
    for address in (f"job/{job.pk}/change/", f"task/{stage.task(job).pk}/change/"):
        shown = reader.text(address)
        assert shown.count("(worker failure)") == 1
        assert re.search(r"worker_failed\W+(?:[\w-]+\W+){0,3}\(worker failure\)", shown)


def test_requeued_task_is_shown_pending_after_a_failed_attempt(
    stage: Stage, reader: Reader
) -> None:
    stage.cell()
    job, attempt = stage.running(retries={"failure": 1})
    stage.fail(attempt)
    task = stage.task(job)
    assert reader.api(f"/tasks/{task.pk}")["state"] == "PENDING"
    html = reader.html(f"task/{task.pk}/change/")
    assert html.index("status-pending") < html.index("status-failed")
    assert "pending" in reader.terminal(job)


def test_pending_reason_is_shown_below_the_state_everywhere(stage: Stage, reader: Reader) -> None:
    stage.cell()
    constraint = {"key": "zone", "op": "eq", "values": ["b"]}
    job = stage.submit_small(constraints=[constraint], allow_unsatisfiable=True)
    stage.place()
    task = stage.task(job)
    why = reader.api(f"/tasks/{task.pk}")["pending_reason"]["text"]
    assert "zone = b" in why
    assert why in reader.terminal(job)
    for address in ("task/", f"job/{job.pk}/change/"):
        assert re.search(rf">pending</span>\s*<[^>]*>{re.escape(why)}<", reader.html(address))
    page = reader.html(f"task/{task.pk}/change/")
    assert page.index("status-pending") < page.index(why)


def test_placed_task_shows_no_pending_reason(stage: Stage, reader: Reader) -> None:
    job = stage.submit_small()
    stage.place()
    task = stage.task(job)
    assert "the pool has no cell" in reader.text(f"task/{task.pk}/change/")
    stage.cell()
    stage.place()
    assert reader.api(f"/tasks/{task.pk}")["pending_reason"] is None
    for address in (f"task/{task.pk}/change/", f"job/{job.pk}/change/"):
        assert "the pool has no cell" not in reader.text(address)
    assert "the pool has no cell" not in reader.terminal(job)
