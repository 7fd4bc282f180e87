"""Gangs that fit start: whatever cells prepare at a time, and in whatever order groups come."""

from datetime import timedelta
from typing import Any

import pytest

from controlplane import clock
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import TaskState as S
from controlplane.models import Attempt, Cell, Job, Pool, Task
from controlplane.queries.integrity.invariants import check_all
from tests.integration.loop.conftest import FakeCell, Loop

TINY = {"cpu": 0.1, "memory": "6Mi"}


def group(name: str, replicas: int, cpu: float, **more: Any) -> dict[str, Any]:
    resources = {"cpu": cpu, "memory": "6Mi"}
    return {
        "name": name,
        "image": "x",
        "command": ["true"],
        "replicas": replicas,
        "resources": resources,
        **more,
    }


def cells(loop: Loop, count: int, cpu: int) -> list[FakeCell]:
    return [loop.cell(f"cell-{number}", cpu=cpu) for number in range(1, count + 1)]


def start(cells: list[FakeCell], attempts: list[Attempt]) -> None:
    for cell in cells:
        mine = [one for one in attempts if one.cell.name == cell.name]
        if mine:
            cell.report(*[AttemptReport(str(one.uid), 0, S.RUNNING) for one in mine])


def test_seventeen_members_start_on_two_idle_cells(loop: Loop) -> None:
    cells(loop, 2, cpu=100_000)
    job = loop.submit(coscheduled=True, replicas=17, resources=TINY)
    loop.place()
    assert loop.states(job) == ["ASSIGNED"] * 17


def test_two_hundred_members_start_on_one_cell(loop: Loop) -> None:
    cells(loop, 1, cpu=100_000)
    job = loop.submit(coscheduled=True, replicas=200, resources=TINY)
    loop.place()
    assert loop.states(job) == ["ASSIGNED"] * 200
    assert check_all() == []


def test_cell_building_a_gang_starts_nothing_else(loop: Loop) -> None:
    [cell] = cells(loop, 1, cpu=100_000)
    gang = loop.submit(coscheduled=True, replicas=20, resources=TINY)
    loop.place()
    other = loop.submit(name="other", resources=TINY)
    loop.place()
    assert loop.states(other) == ["PENDING"]
    start([cell], loop.attempts(gang)[:12])
    loop.place()
    assert loop.states(other) == ["PENDING"]  # eight of the gang are still prepared
    start([cell], loop.attempts(gang)[12:])
    loop.place()
    assert loop.states(other) == ["ASSIGNED"]


def test_members_beyond_the_minimum_wait_for_start_slots(loop: Loop) -> None:
    cells(loop, 1, cpu=100_000)
    job = loop.submit(coscheduled=True, replicas=20, min_available=5, resources=TINY)
    loop.place()
    assert loop.states(job).count("ASSIGNED") == Pool.objects.get().max_building_per_cell


def test_gang_starts_after_the_evictions_made_for_it(loop: Loop) -> None:
    pair = cells(loop, 2, cpu=9000)
    batch = loop.submit(band="batch", replicas=18, resources={"cpu": 1, "memory": "6Mi"})
    while "PENDING" in loop.states(batch):
        loop.place()
        start(pair, [one for one in loop.attempts(batch) if one.state == S.ASSIGNED])
    urgent = loop.submit(
        name="urgent",
        band="production",
        coscheduled=True,
        replicas=9,
        resources={"cpu": 1, "memory": "6Mi"},
    )
    loop.place()
    evicted = [one for one in loop.attempts(batch) if one.state == S.PREEMPTED]
    assert len(evicted) == 9
    for attempt in evicted:
        cell = next(one for one in pair if one.name == attempt.cell.name)
        cell.report(AttemptReport(str(attempt.uid), 0, S.KILLED, gone=True))
    loop.place()
    assert loop.states(urgent) == ["ASSIGNED"] * 9
    assert max(task.preemption_count for task in loop.tasks(batch)) == 1
    assert check_all() == []


@pytest.mark.parametrize("selector", ["dispersed", "concentrated", "round_robin"])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_gang_of_two_task_sizes_starts_in_any_group_order(
    loop: Loop, selector: str, is_reversed: bool
) -> None:
    Pool.objects.update(selector=selector)
    cells(loop, 2, cpu=4000)
    groups = [group("small", 4, 1), group("big", 1, 4)]
    job = loop.submit(coscheduled=True, groups=groups[::-1] if is_reversed else groups)
    loop.place()
    assert set(loop.states(job)) == {"ASSIGNED"}


def test_unconstrained_group_leaves_a_zone_to_the_constrained_group(loop: Loop) -> None:
    first, second = cells(loop, 2, cpu=2000)
    Cell.objects.filter(name=first.name).update(labels={"zone": "a"})
    Cell.objects.filter(name=second.name).update(labels={"zone": "b"})
    bound = {"key": "zone", "op": "eq", "values": ["a"], "required": True}
    groups = [group("free", 2, 1), group("bound", 2, 1, constraints=[bound])]
    job = loop.submit(coscheduled=True, groups=groups)
    loop.place()
    assert set(loop.states(job)) == {"ASSIGNED"}


@pytest.mark.parametrize("is_reversed", [False, True])
def test_minimum_of_a_job_is_met_by_any_split_of_groups(loop: Loop, is_reversed: bool) -> None:
    cell = loop.cell("cell-1", cpu=9000)
    cell.capacity["gpu"] = 1
    assert cell.register().verdict == "accepted"
    wanted = {"cpu": 1, "memory": "6Mi", "gpu": 1}
    groups = [
        {**group("rare", 3, 1, min_available=1), "resources": wanted},
        group("plain", 5, 1, min_available=1),
    ]
    groups = groups[::-1] if is_reversed else groups
    job = loop.submit(coscheduled=True, min_available=5, groups=groups)
    loop.place()
    placed = Task.objects.filter(job=job, state=S.ASSIGNED)
    assert placed.count() >= 5
    assert placed.filter(group__name="rare").count() == 1


def test_stream_of_small_tasks_does_not_starve_a_gang(loop: Loop) -> None:
    """One cell of four cores; each second a task of one core and five seconds, and a gang of 4."""
    [cell] = cells(loop, 1, cpu=4000)
    Pool.objects.update(starvation_seconds=30)
    began = clock.now()
    second = 0
    clock.use(lambda: began + timedelta(seconds=second))
    try:
        ends: dict[Any, int] = {}
        gang: Job | None = None
        while second < 120:
            loop.submit(name=f"small-{second}", resources={"cpu": 1, "memory": "6Mi"})
            if second == 10:
                one = {"cpu": 1, "memory": "6Mi"}
                gang = loop.submit(name="gang", coscheduled=True, replicas=4, resources=one)
            for attempt in Attempt.objects.filter(released_at=None, finished_at=None):
                if attempt.uid not in ends:
                    ends[attempt.uid] = second + 5
                    start([cell], [attempt])
                elif ends[attempt.uid] <= second:
                    cell.end(attempt, S.SUCCEEDED, exit_code=0, started_at=1.0)
            loop.place()
            if gang is not None and "PENDING" not in loop.states(gang):
                break
            second += 1
        assert gang is not None
        assert loop.states(gang) == ["ASSIGNED"] * 4
        assert second <= 10 + 30 + 10  # its patience, and what ran when it was over
    finally:
        clock.use(None)
