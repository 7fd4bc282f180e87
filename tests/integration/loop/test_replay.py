"""A pool as it stands, kept in a file: it is decided again as the ticks decide."""

import json
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from controlplane.models import Attempt, Pool, Quota, TaskGroup
from tests.integration.loop.conftest import Loop


def keep(folder: Path, pool: str = "default") -> Path:
    out = StringIO()
    call_command("placement_snapshot", pool=pool, stdout=out)
    path = folder / "kept.json"
    path.write_text(out.getvalue())
    return path


def decide(path: Path, *words: str) -> str:
    out = StringIO()
    call_command("placement_replay", str(path), *words, stdout=out)
    return out.getvalue()


@pytest.mark.parametrize("sequencer", ["fifo", "drf"])
def test_recorded_pool_replays_the_decisions_of_the_tick(
    loop: Loop, tmp_path: Path, sequencer: str
) -> None:
    Pool.objects.update(sequencer=sequencer)
    Quota.objects.create(user=loop.owner, running_tasks=9, highest_band="production")
    for number in range(3):
        loop.cell(f"cell-{number}", 3000)
    loop.submit(replicas=2)
    loop.place()
    gang = loop.submit(coscheduled=True, replicas=3)
    large = loop.submit(resources={"cpu": 1000, "memory": "64Mi"}, allow_unsatisfiable=True)
    rest = loop.submit(replicas=9, constraints=[{"key": "zone", "op": "exists", "required": False}])
    path = keep(tmp_path)
    plan = json.loads(decide(path, "--json"))
    known = set(Attempt.objects.values_list("pk", flat=True))
    loop.place()
    placed: dict[tuple[int, int, str], int] = {}
    for attempt in Attempt.objects.exclude(pk__in=known).select_related("cell", "task"):
        key = attempt.job_id, attempt.task.group_id, attempt.cell.name
        placed[key] = placed.get(key, 0) + 1
    assert {
        (item["job"], item["group"], item["cell"]): item["count"] for item in plan["placements"]
    } == placed
    assert sum(placed.values()) == 7
    assert {key[0] for key in placed} == {gang.pk, rest.pk}
    codes = {item["shape"]: item["reason"]["code"] for item in plan["reasons"]}
    shapes = {job.pk: TaskGroup.objects.get(job=job).shape_id for job in (large, rest)}
    assert codes[shapes[large.pk]] == "insufficient_resources"
    assert codes[shapes[rest.pk]] in ("insufficient_resources", "quota_exceeded")


def test_replay_prints_the_plan_with_the_time_of_each_step(loop: Loop, tmp_path: Path) -> None:
    loop.cell("cell-1", 2000)
    less = loop.submit(band="batch", replicas=2)
    loop.place()
    job = loop.submit(band="production", replicas=2)
    output = decide(keep(tmp_path))
    group = TaskGroup.objects.get(job=job).pk
    assert "pool default at 20" in output
    assert "1 ready cells, 1 shapes, 2 tasks in 1 rows" in output
    assert "placed: 0 tasks\n  none" in output
    assert "no cell has enough free capacity: cell-1 comes closest and lacks 1 core" in output
    victims = ", ".join(str(task.pk) for task in loop.tasks(less))
    assert str(group) in output
    assert all(victim in output for victim in victims.split(", "))
    for step in ("screen", "place", "make room"):
        assert f"{step} " in output.splitlines()[-1]


def test_replay_reports_an_empty_pool_and_an_invalid_file(loop: Loop, tmp_path: Path) -> None:
    output = decide(keep(tmp_path))
    assert "0 ready cells, 0 shapes, 0 tasks in 0 rows" in output
    with pytest.raises(CommandError, match="there is no pool none"):
        keep(tmp_path, "none")
    path = tmp_path / "wrong.json"
    path.write_text("{}")
    with pytest.raises(CommandError, match="not a record of version 2"):
        decide(path)
