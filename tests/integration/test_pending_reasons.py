"""Why a task waits: each reason by real rows and a real pass, in the same words everywhere.

Shown in the API's list and explanation, by `cellrun explain` and `cellrun job`, and in the admin on
the pages of the task, of its job and of all tasks.
"""

import gc
import importlib
import json
import pkgutil
import re
import sys
import threading
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django.live_server_helper import LiveServer
from typer.testing import CliRunner

from client.cli import app
from controlplane import clock, plugins
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.jobs.holds import hold_job, hold_project
from controlplane.commands.tenancy.tokens import create_api_token
from controlplane.contract.states import TaskState as S
from controlplane.domain import placement
from controlplane.domain.placement.preemption.candidates import RUNNING_JOBS, RUNNING_TASKS
from controlplane.domain.roles import Role
from controlplane.domain.state.states import Reason
from controlplane.domain.state.transitions import Event
from controlplane.models import Cell, Job, Pool, Quota, Task
from docgen.placement_page import EXAMPLES
from tests.scenarios.conftest import loop as loop
from tests.scenarios.conftest import stage as stage
from tests.scenarios.stage import Stage

LATER = "2040-01-01T00:00:00Z"


class Onlooker:
    """A user who requests the pending reason at every endpoint."""

    def __init__(self, stage: Stage, url: str) -> None:
        self._token = create_api_token(
            user=stage.owner, name="test", role=Role.SUBMITTER, now=clock.now()
        )
        self._environ = {"CELLRUN_URL": url, "CELLRUN_TOKEN": self._token}
        self._browser = Client()
        self._browser.force_login(User.objects.create_superuser("olga", password="x"))

    def call(self, path: str) -> Any:
        """What the API answers."""
        headers = {"Authorization": f"Bearer {self._token}"}
        return json.loads(Client().get(f"/api/v1{path}", headers=headers).content)

    def command(self, *words: str) -> str:
        """What the command prints."""
        done = CliRunner().invoke(app, list(words), env=self._environ)
        assert done.exit_code == 0, done.output
        return done.stdout

    def page(self, address: str) -> str:
        """What the admin shows."""
        return unescape(self._browser.get(f"/admin/controlplane/{address}").content.decode())

    def reason(self, task: Task) -> dict[str, Any]:
        """Return the reason of a pending task; check that all endpoints agree."""
        [listed] = [
            item
            for item in self.call(f"/jobs/{task.job_id}/tasks")["results"]
            if item["id"] == task.pk
        ]
        reason: dict[str, Any] = listed["pending_reason"]
        explained = self.call(f"/tasks/{task.pk}/explain")
        assert (explained["state"], explained["reason"]) == ("PENDING", reason)
        text = reason["text"]
        assert explained["text"] == text
        assert text in self.command("explain", "--task", str(task.pk))
        assert self.call(f"/tasks/{task.pk}")["pending_reason"] == reason
        assert text in self.command("job", str(task.job_id))
        assert text in self.page(f"task/{task.pk}/change/")
        for address in (f"job/{task.job_id}/change/", "task/"):
            assert any(text in row for row in self.rows_of(task, address)), address
        return reason

    def rows_of(self, task: Task, address: str) -> list[str]:
        """The lines of the admin's tables that link to the page of a task."""
        lines = re.findall("<tr.*?</tr>", self.page(address), flags=re.DOTALL)
        return [line for line in lines if f"/task/{task.pk}/change/" in line]


@pytest.fixture
def onlooker(stage: Stage, live_server: LiveServer, tmp_path: Path) -> Iterator[Onlooker]:
    yield Onlooker(stage, live_server.url)
    gc.collect()
    for thread in threading.enumerate():
        if "process_request_thread" in thread.name:
            thread.join(timeout=10)


# ------------------------------------------------------------------------- how each comes about

Scene = Callable[[Stage], tuple[Task, str]]
"""Makes a task wait; returns the task and the expected text."""


def waiting(stage: Stage, job: Job) -> Task:
    """The first task of the job that waits."""
    stage.place()
    found = Task.objects.filter(job=job, state=1).order_by("group_id", "index").first()
    assert found is not None
    return found


def lacks_memory(stage: Stage) -> tuple[Task, str]:
    stage.cell("cell-1", memory=4096)
    stage.cell("cell-2", memory=2048)
    stage.submit(resources={"cpu": 0.1, "memory": "3Gi"})
    stage.place()
    job = stage.submit(resources={"cpu": 0.1, "memory": "2560Mi"})
    text = "no cell has enough free capacity: cell-2 comes closest and lacks 512 MiB of memory"
    return waiting(stage, job), text


def matches_no_cell(stage: Stage) -> tuple[Task, str]:
    stage.cell()
    constraint = {"key": "zone", "op": "eq", "values": ["b"]}
    job = stage.submit_small(constraints=[constraint], allow_unsatisfiable=True)
    return waiting(stage, job), "matches: removed by zone = b (1)"


def exceeds_quota(stage: Stage) -> tuple[Task, str]:
    stage.cell()
    Quota.objects.create(user=stage.owner, running_tasks=1)
    job = stage.submit_small(replicas=2)
    return waiting(stage, job), "quota of user owner: 1 running tasks + 1 requested > 1 allowed"


def lacks_tokens(stage: Stage) -> tuple[Task, str]:
    Pool.objects.update(tokens={"licence": 3})
    stage.cell()
    job = stage.submit(replicas=2, resources={"cpu": 0.1, "memory": "64Mi", "licence": 2})
    return waiting(stage, job), "tokens licence: 2 used + 2 requested > 3 of the pool"


def finds_slots_full(stage: Stage) -> tuple[Task, str]:
    Pool.objects.update(max_building_per_cell=1)
    stage.cell()
    Cell.objects.update(drivers=["docker"])
    job = stage.submit_small(replicas=2)
    return waiting(stage, job), "1 cell with room for it already prepares"


def depends_on_group(stage: Stage) -> tuple[Task, str]:
    stage.cell()
    groups = [stage.group("a"), stage.group("b", depends_on=[{"group": "a"}])]
    return waiting(stage, stage.submit(groups=groups)), "waits until group a has succeeded"


def depends_on_job(stage: Stage) -> tuple[Task, str]:
    stage.cell()
    stage.submit_small(guid="first")
    job = stage.submit_small(depends_on=[{"job": "first"}])
    return waiting(stage, job), "waits until job first has succeeded"


def starts_later(stage: Stage) -> tuple[Task, str]:
    stage.cell()
    return waiting(stage, stage.submit_small(start_after=LATER)), "must not start before 2040"


def waits_for_identical_task(stage: Stage) -> tuple[Task, str]:
    stage.cell()
    cache = {"enabled": True, "serialize": True}
    first, second = (stage.submit_small(cache=cache) for _ in range(2))
    stage.converge()
    stage.place()
    stage.converge()
    return waiting(stage, second), f"waits for the result of an identical task of job {first.pk}"


def is_not_found_yet(stage: Stage) -> tuple[Task, str]:
    stage.cell()
    job = stage.submit_small(cache={"enabled": True})
    return waiting(stage, job), "its result is being looked up in the cache"


def waits_for_gang(stage: Stage) -> tuple[Task, str]:
    stage.cell(cpu=2000)
    job = stage.submit(coscheduled=True, replicas=3, allow_unsatisfiable=True)
    return waiting(
        stage, job
    ), "its gang starts together: 3 more tasks must be placed together, 2 could"


def waits_for_gang_to_leave(stage: Stage) -> tuple[Task, str]:
    stage.cell()
    job = stage.submit_small(coscheduled=True, replicas=2)
    stage.place()
    stage.start(*stage.newest(job))
    stage.vanish(stage.newest(job)[0])
    return waiting(stage, job), "waits until the other members of its gang, which fell below its"


def waits_for_container(stage: Stage) -> tuple[Task, str]:
    stage.cell()
    job, _ = stage.running()
    stage.force(job, Event.PREEMPTED, Reason.PREEMPTED)
    return waiting(stage, job), "container of its previous attempt is confirmed gone"


def backs_off(stage: Stage) -> tuple[Task, str]:
    stage.cell()
    job, attempt = stage.running(retries={"failure": 1})
    stage.fail(attempt)
    return waiting(stage, job), "before it is tried again"


def lacks_image(stage: Stage) -> tuple[Task, str]:
    for number in range(3):
        stage.cell(f"cell-{number}", cpu=100)
    job = stage.submit_small(image="lost:1", replicas=3)
    stage.place()
    for attempt in stage.newest(job):
        stage.end(attempt, S.FAILED, failure_kind="system", reason="registry", message="refused")
    stage.converge()
    return waiting(stage, job), "several cells could not pull its image lost:1"


def stands_behind(stage: Stage) -> tuple[Task, str]:
    Pool.objects.update(strict_fifo=True, preemption=False)
    stage.cell(cpu=2000)
    large = stage.submit(replicas=2, resources={"cpu": 1.5, "memory": "64Mi"})
    job = stage.submit_small()
    return waiting(stage, job), f"waits behind job {large.pk}, which does not fit yet"


def meets_broken_plugin(stage: Stage) -> tuple[Task, str]:
    Pool.objects.update(validators=["broken"])
    stage.cell()
    return waiting(stage, stage.submit_small()), "validator broken failed: an operator must fix"


def is_held(stage: Stage) -> tuple[Task, str]:
    stage.cell()
    job = stage.submit_small()
    hold_job(
        job_id=job.pk,
        reason="the data is wrong",
        role=Role.SUBMITTER,
        actor="owner",
        now=clock.now(),
    )
    return waiting(stage, job), "held by owner: the data is wrong, since 2031-05-04T12:00:00"


def is_in_held_project(stage: Stage) -> tuple[Task, str]:
    stage.cell()
    job = stage.submit_small()
    hold_project(
        project_id=job.project_id,
        reason="over budget",
        role=Role.MANAGER,
        actor="mara",
        now=clock.now(),
    )
    return waiting(stage, job), "its project default/default is held by mara: over budget, since"


SCENES: dict[str, tuple[Scene, ...]] = {
    "held": (is_held, is_in_held_project),
    "insufficient_resources": (lacks_memory,),
    "no_cell_matches": (matches_no_cell,),
    "quota_exceeded": (exceeds_quota,),
    "insufficient_tokens": (lacks_tokens,),
    "build_slots_full": (finds_slots_full,),
    "waiting_for_dependency": (depends_on_group,),
    "waiting_for_job": (depends_on_job,),
    "waiting_for_cache": (waits_for_identical_task, is_not_found_yet),
    "waiting_for_start_time": (starts_later,),
    "waiting_for_gang": (waits_for_gang,),
    "waiting_for_gang_to_leave": (waits_for_gang_to_leave,),
    "waiting_for_previous_attempt": (waits_for_container,),
    "backing_off": (backs_off, lacks_image),
    "queue_position": (stands_behind,),
    "plugin_failed": (meets_broken_plugin,),
}


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with a validator that fails is installed, as pip would leave it."""
    (tmp_path / "broken_validator.py").write_text(
        "class Broken:\n    def check(self, request):\n        raise RuntimeError('no luck')\n"
    )
    folder = tmp_path / "broken_validator-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        "[cellrun.validators]\nbroken = broken_validator:Broken\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins.forget()
    yield
    monkeypatch.undo()
    plugins.forget()
    sys.modules.pop("broken_validator", None)


@pytest.mark.parametrize(
    ("code", "scene"),
    [
        pytest.param(code, scene, id=scene.__name__)
        for code, scenes in SCENES.items()
        for scene in scenes
    ],
)
def test_each_reason_has_the_same_text_everywhere(
    stage: Stage, onlooker: Onlooker, broken: None, code: str, scene: Scene
) -> None:
    task, text = scene(stage)
    reason = onlooker.reason(task)
    assert reason["code"] == code
    assert text in reason["text"]


def test_every_reason_has_a_scene_and_a_documentation_example() -> None:
    assert SCENES.keys() == EXAMPLES.keys()
    for code, (make, _) in EXAMPLES.items():
        assert make()["code"] == code


def test_every_code_of_the_domain_has_a_scene() -> None:
    modules = pkgutil.walk_packages(placement.__path__, f"{placement.__name__}.")
    constants = [
        value
        for module in modules
        for name, value in vars(importlib.import_module(module.name)).items()
        if name.isupper() and not name.startswith("_") and isinstance(value, str)
    ]
    assert set(constants) - {RUNNING_TASKS, RUNNING_JOBS} == SCENES.keys()


def test_a_group_of_a_held_image_shows_the_reason_of_its_tasks(
    stage: Stage, onlooker: Onlooker
) -> None:
    task, _ = lacks_image(stage)
    text = onlooker.reason(task)["text"]
    # Three tasks and their group.
    assert onlooker.page(f"job/{task.job_id}/change/").count(text) == 4


# ------------------------------------------------------------------------ what an explanation has


def test_task_not_seen_by_a_pass_has_reason_queue_position(
    stage: Stage, onlooker: Onlooker
) -> None:
    task = stage.task(stage.submit_small())
    assert onlooker.reason(task)["code"] == "queue_position"
    explained = onlooker.call(f"/tasks/{task.pk}/explain")
    assert explained["considered_at"] is None
    assert explained["queue"]["text"] == "position 1 of 1 in the queue of its pool"
    assert explained["queue"]["text"] in onlooker.page(f"task/{task.pk}/change/")


def test_explain_shows_the_queue_position_and_the_job_ahead(
    stage: Stage, onlooker: Onlooker
) -> None:
    first = stage.submit_small(replicas=3)
    other = stage.submit_small(replicas=2)
    last = stage.submit_small(replicas=4, band="batch")
    before = clock.now()
    stage.place()
    explained = onlooker.call(f"/tasks/{stage.tasks(other)[1].pk}/explain")
    assert explained["queue"] == {
        "position": 5,
        "of": 9,
        "behind": {"job": first.pk, "name": "job"},
        "estimate": False,
        "text": f"position 5 of 9 in the queue of its pool, behind job {first.pk}",
    }
    assert explained["considered_at"] > before.isoformat()
    Pool.objects.update(sequencer="fair_share")
    queue = onlooker.call(f"/tasks/{stage.tasks(last)[0].pk}/explain")["queue"]
    assert (queue["position"], queue["behind"]["job"], queue["estimate"]) == (6, other.pk, True)
    assert queue["text"] in onlooker.command("explain", "--task", str(stage.tasks(last)[0].pk))


def test_explain_lists_every_reason_of_a_task(stage: Stage, onlooker: Onlooker) -> None:
    stage.cell()
    Quota.objects.create(user=stage.owner, running_tasks=1)
    stage.submit_small(guid="first")
    stage.place()
    groups = [stage.group("a"), stage.group("b", depends_on=[{"group": "a"}])]
    job = stage.submit(groups=groups, depends_on=[{"job": "first"}], start_after=LATER)
    stage.place()
    explained = onlooker.call(f"/tasks/{stage.tasks(job)[1].pk}/explain")
    assert [item["code"] for item in (explained["reason"], *explained["also"])] == [
        "waiting_for_job",
        "waiting_for_dependency",
        "waiting_for_start_time",
        "quota_exceeded",
    ]
    assert explained["queue"] is None
    page = onlooker.page(f"task/{stage.tasks(job)[1].pk}/change/")
    assert "; ".join(item["text"] for item in explained["also"]) in page
    # The job's page shows a reason for each group, whatever single tasks may wait for.
    assert onlooker.page(f"job/{job.pk}/change/").count(explained["text"]) == 4


def test_outdated_reason_of_a_blocked_task_is_withdrawn(stage: Stage, onlooker: Onlooker) -> None:
    stage.cell(cpu=100)
    _, attempt = stage.running()
    other = stage.submit_small()
    groups = [stage.group("a", resources={"cpu": 0.05, "memory": "64Mi"})]
    groups.append(stage.group("b", depends_on=[{"group": "a"}]))
    task = stage.tasks(stage.submit(groups=groups, start_after=LATER))[1]
    stage.place()

    def codes() -> list[str]:
        explained = onlooker.call(f"/tasks/{task.pk}/explain")
        return [item["code"] for item in (explained["reason"], *explained["also"])]

    blocked = ["waiting_for_dependency", "waiting_for_start_time"]
    assert codes() == [*blocked, "insufficient_resources"]
    cancel_job(job_id=other.pk, reason="", force=False, actor="test", now=clock.now())
    stage.settle()
    stage.succeed(attempt)
    stage.place()
    assert codes() == blocked


def test_explain_shows_the_reservation_of_a_task(stage: Stage, onlooker: Onlooker) -> None:
    stage.cell(cpu=100)
    stage.running(band="batch")
    job = stage.submit_small(band="production")
    task = waiting(stage, job)
    kept = onlooker.call(f"/tasks/{task.pk}/explain")["nomination"]
    assert kept["cell"] == "cell-1"
    assert kept["until"] > clock.now().isoformat()
    assert "on cell cell-1 until" in onlooker.page(f"task/{task.pk}/change/")


def test_explain_shows_the_state_and_cell_of_a_started_task(
    stage: Stage, onlooker: Onlooker
) -> None:
    stage.cell()
    job, attempt = stage.running()
    address = f"/tasks/{stage.task(job).pk}/explain"
    explained = onlooker.call(address)
    assert explained["reason"] == {
        "code": "running",
        "text": "is RUNNING on cell cell-1",
        "cell": "cell-1",
    }
    assert (explained["queue"], explained["also"]) == (None, [])
    stage.fail(attempt)
    explained = onlooker.call(address)
    assert (explained["reason"]["code"], explained["text"]) == ("failed", "exit status 1")


def test_dry_run_command_predicts_the_pending_reason(
    stage: Stage, onlooker: Onlooker, tmp_path: Path
) -> None:
    stage.cell(cpu=1000)
    stage.running()
    path = tmp_path / "job.json"
    path.write_text(json.dumps(stage.group("asked", replicas=2, resources={"cpu": 0.9})))
    lines = onlooker.command("submit", str(path), "--dry-run").splitlines()
    assert lines[0] == "main: 1 of 2 tasks would be placed now: 1 on cell-1"
    submitted = json.loads(onlooker.command("submit", str(path), "--json"))
    task = waiting(stage, Job.objects.get(pk=submitted["id"]))
    assert lines[1] == f"main: 1 task would wait: {onlooker.reason(task)['text']}"
