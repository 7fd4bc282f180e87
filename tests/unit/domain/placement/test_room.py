"""Candidates for preemption, and reservations for rows that have waited too long."""

from dataclasses import replace
from datetime import timedelta

import pytest

from controlplane.domain.constraints import Constraint, Operator
from controlplane.domain.placement.model.snapshot import EvictableAttempt, ReleasingCapacity
from controlplane.domain.placement.preemption.make_room import make_room, reserve, starving
from controlplane.domain.placement.preemption.preempt import Eviction
from controlplane.domain.scopes import ScopeKind, ScopeLimits
from controlplane.domain.state.states import Band
from tests.harness.domain.facts import NOW
from tests.unit.domain.placement.pools import Pool, Row, cell, gang, pool, quota, row

PRODUCTION = {"band": Band.PRODUCTION, "coscheduled": True, "job": 9}


def full_cells(*cpu: int) -> tuple[list[EvictableAttempt], list[int]]:
    """Two BATCH tasks on each cell of so many thousandths, which hold half of it each."""
    running = [
        EvictableAttempt(
            task_id=10 * number + half,
            job_id=100 + 10 * number + half,
            group_id=1,
            cell_id=number,
            band=Band.BATCH,
            resources={"cpu_millis": amount // 2, "memory_mib": 64},
            owner_id=2,
            project_id=2,
            domain_id=1,
            began_at=NOW - timedelta(seconds=60),
            stop_seconds=10.0,
        )
        for number, amount in enumerate(cpu)
        for half in (1, 2)
    ]
    return running, list(cpu)


def evictions(*rows: Row, minima: tuple[tuple[int, int, int], ...]) -> list[Eviction]:
    running, sizes = full_cells(8000, 8000)
    cells = [
        cell(number, cpu=cpu, used={"cpu_millis": cpu, "memory_mib": 128})
        for number, cpu in enumerate(sizes)
    ]
    case = pool(cells, *rows, gangs={9: gang(*minima)})
    return make_room(case.snapshot, case.place(), case.facts.waiting, running, (), {})


def test_all_groups_of_a_gang_get_capacity_at_once() -> None:
    leader, workers = row(1, 1, cpu=2000, **PRODUCTION), row(2, 2, cpu=4000, **PRODUCTION)
    (eviction,) = evictions(leader, workers, minima=((1, 1, 1), (2, 2, 2)))
    assert len(eviction.victims) == 3
    assert sum(count for group, _, count in eviction.places() if group == 1) == 1
    assert sum(count for group, _, count in eviction.places() if group == 2) == 2


def test_eviction_frees_capacity_only_for_the_minima() -> None:
    leader, workers = row(1, 1, cpu=2000, **PRODUCTION), row(2, 5, cpu=2000, **PRODUCTION)
    (eviction,) = evictions(leader, workers, minima=((1, 1, 1), (2, 1, 5)))
    assert [*eviction.places()] in ([(1, 0, 1), (2, 0, 1)], [(2, 0, 1), (1, 0, 1)])
    assert eviction.victims in ((1,), (2,))


def test_members_that_avoid_a_cell_count_with_the_others_of_their_group() -> None:
    here = row(1, 1, cpu=4000, **PRODUCTION)
    elsewhere = row(1, 1, cpu=4000, avoid_cell_id=0, **PRODUCTION)
    (eviction,) = evictions(here, elsewhere, minima=((1, 2, 2),))
    assert sum(eviction.counts) == 2
    assert 1 in eviction.cell_ids


def two_halves(band: Band) -> tuple[Pool, list[EvictableAttempt]]:
    """Two full cells. The gang may use the first, which a PRODUCTION task fills, with its smaller
    group only, and the second, which two BATCH tasks fill, with its larger one only."""
    running, _ = full_cells(8000, 8000)
    running[0] = replace(running[0], band=Band.PRODUCTION, resources={"cpu_millis": 8000})
    del running[1]
    cells = [
        cell(number, cpu=8000, used={"cpu_millis": 8000, "memory_mib": 128}, labels={"zone": zone})
        for number, zone in enumerate("ab")
    ]
    terms = {**PRODUCTION, "band": band, "since": NOW - timedelta(seconds=301)}
    rows = [
        row(group, 2, cpu=cpu, constraints=(Constraint("zone", Operator.EQ, (zone,)),), **terms)
        for group, cpu, zone in ((1, 1000, "a"), (2, 4000, "b"))
    ]
    return pool(cells, *rows, gangs={9: gang((1, 0, 2), (2, 0, 2), least=2)}), running


def test_eviction_serves_the_members_that_can_meet_the_job_minimum() -> None:
    case, running = two_halves(Band.PRODUCTION)
    (eviction,) = make_room(case.snapshot, case.place(), case.facts.waiting, running, (), {})
    assert eviction.victims == (11, 12)
    assert [*eviction.places()] == [(2, 1, 2)]


def test_reservation_serves_the_members_that_can_meet_the_job_minimum() -> None:
    case, running = two_halves(Band.BATCH)
    running = [
        replace(one, cell_id=99) if one.band is Band.PRODUCTION else one for one in running
    ]  # the first cell is full for another reason, and stays so
    plan = case.place()
    starved = starving(case.snapshot, plan, case.facts.waiting)
    found = reserve(case.snapshot, plan, case.facts.waiting, starved, running, ())
    assert [(one.group_id, one.cell_id, one.count) for one in found] == [(2, 1, 2)]


@pytest.mark.parametrize("other", [4000, 2000])
def test_eviction_serves_the_members_that_may_use_the_cell(other: int) -> None:
    """One member of two avoids the cell with work to evict; the other may go there."""
    running, _ = full_cells(8000)
    cells = [
        cell(0, cpu=8000, used={"cpu_millis": 8000, "memory_mib": 128}),
        cell(1, cpu=other, used={"cpu_millis": other}),
    ]
    elsewhere = row(1, 1, cpu=4000, avoid_cell_id=0, **PRODUCTION)
    anywhere = row(1, 1, cpu=4000, **PRODUCTION)
    case = pool(cells, elsewhere, anywhere, gangs={9: gang((1, 1, 2))})
    (eviction,) = make_room(case.snapshot, case.place(), case.facts.waiting, running, (), {})
    assert [*eviction.places()] == [(1, 0, 1)]
    assert len(eviction.victims) == 1


@pytest.mark.parametrize("workers", [4, 5])
def test_no_task_is_evicted_for_a_gang_that_would_not_fit(workers: int) -> None:
    leader, rest = row(1, 1, cpu=2000, **PRODUCTION), row(2, workers, cpu=4000, **PRODUCTION)
    assert evictions(leader, rest, minima=((1, 1, 1), (2, workers, workers))) == []


def test_quota_freed_for_one_task_is_not_used_for_the_next() -> None:
    """One of two tasks of a full quota leaves for a nominated task: the next needs another."""
    running, sizes = full_cells(8000, 8000)
    running = [replace(one, owner_id=1) for one in running if one.task_id in (1, 2)]
    cells = [cell(0, cpu=sizes[0], used={"cpu_millis": 8000}), cell(1, cpu=sizes[1])]
    first = row(1, 1, job=1, band=Band.PRODUCTION, nominated_cell_id=0)
    second = row(2, 1, job=2, band=Band.PRODUCTION)
    limits = ScopeLimits(running_tasks=2)
    held = quota(ScopeKind.USER, 1, limits, running_tasks=2)
    case = pool(cells, first, second, quotas=(held,))
    gone = {held.scope: {"running_tasks": 1}}
    plan = case.place()
    assert plan.count == 0
    staying, leaving = running[1:], [ReleasingCapacity(0, {"cpu_millis": 4000})]
    (eviction,) = make_room(case.snapshot, plan, case.facts.waiting, staying, leaving, gone)
    assert (eviction.need.group_id, eviction.victims) == (2, (2,))


def test_releasing_job_frees_its_quota_for_the_next_job_and_itself() -> None:
    """No further task is evicted for its part of the quota when the task needs only room."""
    running, sizes = full_cells(8000)
    running = [replace(one, owner_id=2) for one in running]
    held = quota(
        ScopeKind.USER,
        1,
        ScopeLimits(running_jobs=1),
        running_tasks=1,
        jobs=frozenset({5}),
        leaving_jobs=frozenset({5}),
    )
    cells = [cell(0, cpu=sizes[0], used={"cpu_millis": 8000})]
    for job in (5, 6):
        case = pool(cells, row(job, 1, job=job, band=Band.PRODUCTION), quotas=(held,))
        plan = case.place()
        assert plan.count == 0
        (eviction,) = make_room(case.snapshot, plan, case.facts.waiting, running, (), {})
        assert (eviction.need.group_id, len(eviction.victims)) == (job, 1)


@pytest.mark.parametrize(("reserved", "more"), [(0, 2), (1, 1), (2, 0)])
def test_two_tasks_of_a_pool_get_a_reservation_even_from_one_group(
    reserved: int, more: int
) -> None:
    long_ago = NOW - timedelta(seconds=301)
    full = cell(0, cpu=4000, used={"cpu_millis": 4000})
    rows = [row(number, 1, cpu=500 + number, since=long_ago) for number in (2, 3, 4)]
    if reserved:
        rows.append(row(1, reserved, nominated_cell_id=0, since=long_ago))
    case = pool([full], *rows)
    assert len(starving(case.snapshot, case.place(), case.facts.waiting)) == more
