"""Why a task waits: each reason by real rows and a real pass, in the same words everywhere.

Shown in the API's list and explanation, by `cellrun explain` and `cellrun job`, and in the admin on
the pages of the task, of its job and of all tasks.
"""

import importlib
import json
import pkgutil
from pathlib import Path

import pytest

from controlplane import clock
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.domain import placement
from controlplane.domain.placement.preemption.candidates import RUNNING_JOBS, RUNNING_TASKS
from controlplane.models import Job, Pool, Quota
from docgen.placement_page import EXAMPLES
from tests.integration.onlooker import Onlooker
from tests.integration.onlooker import broken as broken
from tests.integration.onlooker import onlooker as onlooker
from tests.integration.pending_scenes import LATER, SCENES, Scene, lacks_image, waiting
from tests.scenarios.conftest import loop as loop
from tests.scenarios.conftest import stage as stage
from tests.scenarios.stage import Stage


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
    submitted = json.loads(onlooker.command("submit", str(path), "-o", "json"))
    task = waiting(stage, Job.objects.get(pk=submitted["id"]))
    assert lines[1] == f"main: 1 task would wait: {onlooker.reason(task)['text']}"
