"""Drawn pools: a dry run predicts what becomes of a job when it is submitted."""

import random
from collections import Counter
from typing import Any

import pytest

from controlplane import clock
from controlplane.commands.jobs.dry_run import dry_run
from controlplane.contract.states import TaskState as S
from controlplane.models import Attempt, Cell, Job, Pool, Quota, Task
from controlplane.queries.views.tasks import list_tasks
from controlplane.spec import parse_job
from tests.integration.loop.conftest import Loop

SEEDS = range(24)


def draw_group(dice: random.Random, name: str) -> dict[str, Any]:
    resources = {"cpu": dice.choice([0.5, 1, 2, 3]), "memory": "64Mi"}
    if dice.random() < 0.2:
        resources["licence"] = 1
    group = {"name": name, "image": "x", "resources": resources, "replicas": dice.randint(1, 4)}
    if dice.random() < 0.3:
        required = dice.random() < 0.5
        group["constraints"] = [{"key": "zone", "op": "eq", "values": ["a"], "required": required}]
    return group


def draw_job(dice: random.Random) -> dict[str, Any]:
    groups = [draw_group(dice, name) for name in "ab"[: dice.randint(1, 2)]]
    if len(groups) == 2 and dice.random() < 0.2:
        groups[1]["depends_on"] = [{"group": "a"}]
    is_gang = dice.random() < 0.3 and "depends_on" not in groups[-1]
    return {
        "name": "drawn",
        "band": dice.choice(["production", "interactive", "interactive", "batch"]),
        "groups": groups,
        "coscheduled": is_gang,
        "allow_unsatisfiable": True,
    }


def draw_pool(dice: random.Random, loop: Loop) -> None:
    Pool.objects.update(
        sequencer=dice.choice(["fifo", "lifo", "drf", "fair_share", "fair_projects"]),
        selector=dice.choice(["dispersed", "concentrated", "round_robin"]),
        strict_fifo=dice.random() < 0.2,
        preemption=dice.random() < 0.5,
        tokens={"licence": 2},
    )
    if dice.random() < 0.4:
        limit = dice.randint(2, 9)
        Quota.objects.create(user=loop.owner, running_tasks=limit, highest_band="production")
    for number in range(dice.randint(1, 4)):
        loop.cell(f"cell-{number}", dice.choice([2000, 4000]))
        if dice.random() < 0.5:
            Cell.objects.filter(name=f"cell-{number}").update(labels={"zone": "a"})


def found_of(job: Job) -> list[tuple[str, dict[str, int], int, set[str]]]:
    """Of each group: its name, its tasks by cell, how many wait, and their reasons' codes."""
    listed = list_tasks(job.pk, states=[], after=None, limit=1000, now=clock.now())
    found = []
    for group in job.groups.order_by("position"):
        tasks = [task for task in listed if task["group"] == group.name]
        cells = Counter(str(task["cell_id"]) for task in tasks if task["state"] == "ASSIGNED")
        waiting = [task["pending_reason"]["code"] for task in tasks if task["state"] == "PENDING"]
        found.append((group.name, dict(sorted(cells.items())), len(waiting), set(waiting)))
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_dry_run_of_a_random_job_predicts_its_placement(loop: Loop, seed: int) -> None:
    dice = random.Random(seed)
    draw_pool(dice, loop)
    for _ in range(dice.randint(0, 3)):
        loop.submit(**draw_job(dice))
    loop.place()
    for _ in range(dice.randint(0, 2)):
        loop.submit(**draw_job(dice))
    body = draw_job(dice)
    forecast = dry_run(spec=parse_job(body), body=body, owner=loop.owner, now=clock.now())
    before = set(Attempt.objects.filter(state=S.PREEMPTED).values_list("pk", flat=True))
    job = loop.submit(**body)
    loop.place()
    assert [(group.name, dict(group.cells), group.waiting) for group in forecast.groups] == [
        item[:3] for item in found_of(job)
    ]
    for group, (*_, codes) in zip(forecast.groups, found_of(job), strict=True):
        assert codes == ({group.reason["code"]} if group.reason else set())
    kept = Task.objects.filter(job=job, nominated_cell_id__isnull=False)
    assert sum(sum(group.kept.values()) for group in forecast.groups) == kept.count()
    gone = Attempt.objects.filter(state=S.PREEMPTED).exclude(pk__in=before)
    assert {item["task"] for item in forecast.evicts} <= {attempt.task_id for attempt in gone}
    assert forecast.is_complete
