"""docs/troubleshooting.md: each pending reason has the text of its entry, whose remedy ends it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from pytest_django.live_server_helper import LiveServer
from typer.testing import CliRunner

from cellrun.cli import app
from controlplane import clock
from controlplane.commands.tenancy.tokens import create_api_token
from controlplane.domain.roles import Role
from controlplane.models import Attempt, Job, Task
from tests.harness.troubleshooting import entries, is_symptom
from tests.integration import pending_scenes as scenes
from tests.integration.onlooker import Onlooker
from tests.integration.onlooker import broken as broken
from tests.integration.onlooker import onlooker as onlooker
from tests.integration.pending_scenes import SCENES, Scene
from tests.scenarios.conftest import loop as loop
from tests.scenarios.conftest import stage as stage
from tests.scenarios.stage import Stage


@dataclass(frozen=True)
class Operation:
    """An operator at the command, beside the cells that may be repaired, and the waiting task."""

    stage: Stage
    task: Task
    url: str
    token: str

    def run(self, *words: object) -> None:
        """Run `cellrun`."""
        environ = {"CELLRUN_URL": self.url, "CELLRUN_TOKEN": self.token}
        done = CliRunner().invoke(app, [str(word) for word in words], env=environ)
        assert done.exit_code == 0, done.output

    def post(self, path: str) -> None:
        """Send a request for which there is no command."""
        headers = {"Authorization": f"Bearer {self.token}"}
        request = {"content_type": "application/json", "headers": headers}
        assert Client().post(f"/api/v1{path}", "{}", **request).status_code == 200

    def others(self) -> list[Attempt]:
        """Return the attempts of other jobs that hold capacity."""
        return list(Attempt.objects.filter(released_at=None).exclude(job=self.task.job_id))

    def cancel_others(self) -> None:
        """Cancel the other jobs; their cells stop the containers."""
        held = self.others()
        for job in Job.objects.exclude(pk=self.task.job_id):
            self.run("cancel", job.pk)
        self.stage.confirm(*held)


Remedy = Callable[[Operation], object]


def release_attempt(operation: Operation) -> None:
    attempt = Attempt.objects.get(job=operation.task.job_id)
    operation.run("release-attempt", attempt.uid, "--reason", "the machine is scrap")


def let_the_hold_of_the_image_end(operation: Operation) -> None:
    """Wait; each task avoids the cell on which it failed, and a further cell has room for one."""
    operation.stage.wait(61)
    operation.stage.cell("cell-3")


def let_the_gang_leave(operation: Operation) -> None:
    operation.stage.settle()
    operation.stage.confirm(*Attempt.objects.filter(released_at=None))
    operation.stage.wait(60)


def let_the_other_task_run(operation: Operation) -> None:
    operation.stage.confirm(*operation.others())
    operation.stage.place()
    operation.stage.succeed(*operation.others())


def let_the_group_succeed(operation: Operation) -> None:
    operation.stage.succeed(*Attempt.objects.filter(released_at=None))


def submit_again(operation: Operation) -> Task:
    operation.run("cancel", operation.task.job_id)
    return operation.stage.task(operation.stage.submit_small())


REMEDIES: dict[Scene, Remedy] = {
    scenes.is_held: lambda it: it.run("release", it.task.job_id),
    scenes.is_in_held_project: lambda it: it.run("project", "release", "default/default"),
    scenes.backs_off: lambda it: it.stage.wait(60),
    scenes.lacks_image: let_the_hold_of_the_image_end,
    scenes.waits_for_container: release_attempt,
    scenes.depends_on_job: lambda it: it.stage.succeed(*it.others()),
    scenes.depends_on_group: let_the_group_succeed,
    scenes.waits_for_gang_to_leave: let_the_gang_leave,
    scenes.waits_for_identical_task: Operation.cancel_others,
    scenes.is_not_found_yet: lambda it: it.stage.converge(),
    scenes.starts_later: submit_again,
    scenes.exceeds_quota: lambda it: it.run("quota", "user", "owner", "--set", "running_tasks=2"),
    scenes.lacks_tokens: lambda it: it.run("pools", "default", "--set", "tokens.licence=4"),
    scenes.finds_its_key_full: Operation.cancel_others,
    scenes.exceeds_the_rate_of_its_key: lambda it: it.stage.wait(30),
    scenes.matches_no_cell: lambda it: it.stage.cell_of("default", "cell-2", zone="b"),
    scenes.finds_no_ready_cell: lambda it: it.post("/cells/cell-1/uncordon"),
    scenes.finds_no_cell: lambda it: it.stage.cell(),
    scenes.lacks_memory: Operation.cancel_others,
    scenes.lacks_what_is_reserved: let_the_other_task_run,
    scenes.is_larger_than_every_cell: lambda it: it.stage.cell("cell-2"),
    scenes.finds_slots_full: lambda it: it.run(
        "pools", "default", "--set", "max_building_per_cell=8"
    ),
    scenes.waits_for_gang: lambda it: it.stage.cell("cell-2"),
    scenes.meets_broken_plugin: lambda it: it.run("pools", "default", "--set", "validators=[]"),
    scenes.stands_behind: lambda it: it.run("move", it.task.job_id, "--to", "front"),
    scenes.is_not_considered_yet: lambda it: it.stage.place(),
}
"""What the entry of each scene's reason recommends; a new task if it submits the job again."""


@pytest.mark.parametrize(
    ("code", "number"),
    [
        pytest.param(code, number, id=scene.__name__)
        for code, found in SCENES.items()
        for number, scene in enumerate(found)
    ],
)
def test_reason_has_the_documented_text_and_remedy(
    stage: Stage,
    onlooker: Onlooker,
    broken: None,
    live_server: LiveServer,
    code: str,
    number: int,
) -> None:
    scene = SCENES[code][number]
    task, _ = scene(stage)
    explained = onlooker.call(f"/tasks/{task.pk}/explain")
    assert explained["reason"]["code"] == code
    assert is_symptom(entries("Reason")[code].symptoms[number], explained["text"])
    assert explained["text"] in onlooker.command("explain", "--task", str(task.pk))
    operation = Operation(stage, task, live_server.url, operator_token())
    again = REMEDIES[scene](operation)
    task = again if isinstance(again, Task) else task
    stage.settle()
    stage.place()
    after: dict[str, Any] = onlooker.call(f"/tasks/{task.pk}/explain")
    assert after["state"] == "ASSIGNED", after


def operator_token() -> str:
    operator = User.objects.create_superuser("ola", password="x")
    return create_api_token(user=operator, name="test", role=Role.OPERATOR, now=clock.now())


def test_every_symptom_of_a_reason_has_its_scene_and_every_scene_its_remedy() -> None:
    symptoms = {code: len(entry.symptoms) for code, entry in entries("Reason").items()}
    assert {code: len(found) for code, found in SCENES.items()} == symptoms
    assert {scene for found in SCENES.values() for scene in found} == REMEDIES.keys()
