"""Gangs and preemption on real rows: of several groups, and on cells that take no new work."""

from datetime import timedelta
from typing import Any

import pytest

from controlplane import clock
from controlplane.commands.cells.operate import cordon_cell
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import TaskState as S
from controlplane.models import Cell, Job, Pool, Quota, Task
from controlplane.queries.integrity.invariants import check_all
from controlplane.queries.placement.running_attempts import load_held
from tests.integration.loop.conftest import FakeCell, Loop

NAMES = ("cell-1", "cell-2")


def group(name: str, cpu: int, replicas: int = 1) -> dict[str, object]:
    return {
        "name": name,
        "image": "x",
        "command": ["true"],
        "replicas": replicas,
        "resources": {"cpu": cpu, "memory": "64Mi"},
    }


def start_all(loop: Loop, job: Job, cells: list[FakeCell]) -> None:
    """Each cell reports those of the job's attempts that it has as running."""
    for cell in cells:
        mine = [one for one in loop.attempts(job) if one.cell.name == cell.name]
        cell.report(*[AttemptReport(str(attempt.uid), 0, S.RUNNING) for attempt in mine])


def test_preemption_makes_room_for_both_groups_of_a_gang(loop: Loop) -> None:
    cells = [loop.cell(name, cpu=4000) for name in NAMES]
    batch = loop.submit(band="batch", replicas=8)
    loop.place()
    start_all(loop, batch, cells)
    groups = [group("leader", 1), group("workers", 2, replicas=2)]
    urgent = loop.submit(band="production", coscheduled=True, groups=groups)
    loop.place()
    # 5 cores are needed, in pieces of 2, 2 and 1: five small tasks go.
    assert loop.states(batch).count("PENDING") == 5
    nominated = Task.objects.filter(job=urgent, nominated_cell_id__isnull=False)
    assert nominated.count() == 3
    for attempt in loop.attempts(batch):
        cell = next(one for one in cells if one.name == attempt.cell.name)
        if attempt.state == S.PREEMPTED:
            cell.report(AttemptReport(str(attempt.uid), 0, S.KILLED, gone=True))
    loop.place()
    assert set(loop.states(urgent)) == {"ASSIGNED"}
    assert loop.states(batch).count("RUNNING") == 3
    assert check_all() == []


def test_gang_with_a_member_on_a_cordoned_cell_is_preempted_whole(loop: Loop) -> None:
    closed, ready = (loop.cell(name, cpu=1000) for name in NAMES)
    gang = loop.submit(band="batch", replicas=2, coscheduled=True)
    loop.place()
    start_all(loop, gang, [closed, ready])
    cordon_cell(name=closed.name, actor="somebody", now=clock.now())
    ids = {attempt.cell.name: attempt.cell_id for attempt in loop.attempts(gang)}
    held = load_held([ids[ready.name]])
    assert sorted(one.cell_id for one in held.running) == sorted(ids.values())
    assert {one.gang for one in held.running} == {gang.pk}
    loop.submit(band="production")
    loop.place()
    assert loop.states(gang) == ["PENDING", "PENDING"]
    assert {one.state for one in loop.attempts(gang)} == {S.PREEMPTED}


@pytest.mark.parametrize("is_strict", [False, True])
@pytest.mark.parametrize("coscheduled", [False, True])
@pytest.mark.parametrize(
    "limits", [{"running_jobs": 1}, {"running_tasks": 2}, {"resources": {"cpu_millis": 2000}}]
)
def test_pools_that_reserved_a_quota_twice_do_not_wait_for_each_other(
    loop: Loop, limits: dict[str, Any], coscheduled: bool, is_strict: bool
) -> None:
    # Two workers of placement, each with a pool, may nominate at once for the same quota.
    Quota.objects.create(user=loop.owner, highest_band="production", **limits)
    for name in ("default", "second"):
        pool, _ = Pool.objects.get_or_create(name=name)
        Pool.objects.filter(pk=pool.pk).update(strict_fifo=is_strict)
        cell_name = loop.cell(name, cpu=2000).name
        Cell.objects.filter(name=cell_name).update(pool=pool)
        job = loop.submit(pool=name, replicas=2, coscheduled=coscheduled)
        Task.objects.filter(job=job).update(
            nominated_cell_id=Cell.objects.get(name=cell_name).pk,
            nominated_until=clock.now() + timedelta(seconds=30),
        )
    loop.place()
    states = [set(loop.states(job)) for job in Job.objects.order_by("id")]
    assert states in ([{"ASSIGNED"}, {"PENDING"}], [{"PENDING"}, {"ASSIGNED"}])
    assert check_all() == []
