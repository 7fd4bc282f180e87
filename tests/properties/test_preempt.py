"""Preemption in small pools, against every set of victims there is."""

from copy import deepcopy
from dataclasses import replace
from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from controlplane.domain.placement.preemption.candidates import EvictionUnits, PreemptionRequest
from controlplane.domain.placement.preemption.gang import find_many
from controlplane.domain.placement.preemption.preempt import Eviction, choose_evictions
from tests.harness.drawn import examples
from tests.properties.brute_force import World
from tests.properties.preemption_worlds import LICENCE, NAMES, Pools

seeds = st.integers(0, 2**32)


def choose(pools: Pools, needs: list[PreemptionRequest], *, limit: int = 100) -> list[Eviction]:
    world = pools.world
    return choose_evictions(
        needs,
        world.cells,
        NAMES,
        pools.free_now(),
        world.running,
        leaving=pools.leaving,
        allowances=world.as_allowances(),
        now=world.now,
        limit=limit,
    )


def units_of(pools: Pools) -> EvictionUnits:
    world = pools.world
    return EvictionUnits(
        world.cells,
        NAMES,
        pools.free_now(),
        world.running,
        pools.leaving,
        world.as_allowances(),
        world.now,
    )


def jobs_block(world: World, need: PreemptionRequest) -> bool:
    """Whether running jobs are lacking: then jobs go whole, which is small, not always smallest."""
    return any("running_jobs" in names for names in world.lacks(need).values())


@settings(max_examples=examples(600))
@given(seeds)
def test_one_task_gets_the_cheapest_of_all_victim_sets(seed: int) -> None:
    pools = Pools(seed)
    need, world = pools.need(1), pools.world
    best, found = world.best(need), choose(pools, [need])
    assert (best is None) == (not found)
    if best is not None:
        outcomes = world.outcomes(need, world.victims_of(found[0]))
        ranks = [item.rank for item in outcomes if item.counts == world.counts_of(found[0])]
        assert ranks
        assert ranks == [best.rank] or jobs_block(world, need)


@settings(max_examples=examples(400))
@given(seeds)
def test_gang_gets_the_cheapest_of_all_victim_sets(seed: int) -> None:
    pools = Pools(seed)
    need, world = pools.need(1, most=4), pools.world
    best, found = world.best(need), choose(pools, [need])
    assert (best is None) == (not found)
    if best is not None:
        outcomes = world.outcomes(need, world.victims_of(found[0]))
        assert best.rank in [outcome.rank for outcome in outcomes]
        assert world.counts_of(found[0]) == best.counts


@settings(max_examples=examples(400))
@given(seeds)
def test_each_eviction_takes_only_lower_bands_and_no_needless_victim(seed: int) -> None:
    pools = Pools(seed, most_running=9)
    needs = [pools.need(number, most=pools.random.choice([1, 1, 3])) for number in range(1, 5)]
    found = choose(deepcopy(pools), needs)
    order = [eviction.need.group_id for eviction in found]
    assert all(first < second for first, second in pairwise(order))
    by_group = {eviction.need.group_id: eviction for eviction in found}
    for need in needs:
        if need.group_id in by_group:
            check(pools.world, by_group[need.group_id])
            pools.world.book(by_group[need.group_id])
        else:
            assert pools.world.best(need) is None, "it fits somewhere, if the right ones go"


def check(world: World, eviction: Eviction) -> None:
    """The victims are allowed, make room, and none of them can stay."""
    need, victims = eviction.need, world.victims_of(eviction)
    assert len(victims) == len(eviction.victims), "a task is evicted twice"
    assert all(item.band > need.shape.band for item in victims)
    units = [unit for unit in world.units(need.shape.band) if any(v in victims for v in unit)]
    assert sorted(item.task_id for unit in units for item in unit) == list(eviction.victims)
    outcomes = world.outcomes(need, victims)
    assert world.counts_of(eviction) in [outcome.counts for outcome in outcomes]
    for unit in units:
        others = [item for item in victims if item not in unit]
        assert not list(world.outcomes(need, others)), "a victim could stay"
    slowest = max((item.stop_seconds for item in victims), default=0)
    assert (eviction.until - world.now).total_seconds() == slowest + 30


@settings(max_examples=examples(200))
@given(seeds)
def test_order_of_running_tasks_makes_no_difference(seed: int) -> None:
    pools = Pools(seed, most_running=12)
    needs = [pools.need(number, most=1 + number) for number in range(3)]
    found = choose(pools, needs)
    pools.random.shuffle(pools.world.running)
    pools.random.shuffle(pools.leaving)
    assert choose(pools, needs) == found


@settings(max_examples=examples(200))
@given(seeds, st.integers(1, 6))
def test_number_of_nominated_tasks_is_limited(seed: int, limit: int) -> None:
    pools = Pools(seed)
    needs = [pools.need(number, most=pools.random.choice([1, 3])) for number in range(6)]
    found = choose(pools, needs, limit=limit)
    assert sum(eviction.need.count for eviction in found[1:]) <= limit
    if found and found[0].need.count <= limit:
        assert sum(eviction.need.count for eviction in found) <= limit


@settings(max_examples=examples(300))
@given(seeds)
def test_gang_among_many_units_takes_no_needless_victim(seed: int) -> None:
    """Where not all sets are compared, the same gangs get their places, and no unit could stay."""
    pools = Pools(seed)
    need, world = pools.need(1, most=4), pools.world
    running = units_of(pools)
    exact = find_many(running, need, need.usable[:1], most_units=8)
    found = find_many(running, need, need.usable[:1], most_units=0)
    assert (found is None) == (exact is None)
    if found is None or exact is None:
        return
    assert found.rank >= exact.rank
    units = [running.tasks[unit] for unit in found.units.tolist()]
    gone = [item for item in world.running if any(item.task_id in unit for unit in units)]
    assert list(world.outcomes(need, gone))
    alone = PreemptionRequest(
        need.shape, 1, need.job_id, need.count, need.usable[:1], need.is_new_job
    )
    for unit in units:
        others = [item for item in gone if item.task_id not in unit]
        assert not list(world.outcomes(alone, others)), "a unit could stay"


def gang_of_three_groups(pools: Pools) -> PreemptionRequest:
    """One or two tasks of each; the groups have nothing in common but their job."""
    first, *others = (pools.need(number) for number in range(1, 4))
    shape, job = first.shape, first.job_id
    parts = [
        replace(
            other,
            shape=replace(
                other.shape,
                band=shape.band,
                owner_id=shape.owner_id,
                project_id=shape.project_id,
            ),
            count=pools.random.randint(1, 2),
            job_id=job,
            is_new_job=first.is_new_job,
        )
        for other in others
    ]
    return replace(first, others=tuple(parts))


@settings(max_examples=examples(300))
@given(seeds, st.sampled_from([0, 8]))
def test_gang_of_several_groups_fits_on_its_nominated_cells(seed: int, most: int) -> None:
    pools = Pools(seed)
    world, need = pools.world, gang_of_three_groups(pools)
    running = units_of(pools)
    ways = [part.usable[0] for part in need.parts]
    found = find_many(running, need, ways, most_units=most)
    if found is None:
        return
    units = [running.tasks[unit] for unit in found.units.tolist()]
    gone = [item for item in world.running if any(item.task_id in unit for unit in units)]
    assert all(item.is_evictable and item.band > need.shape.band for item in gone)
    counts = [0] * len(need.parts)
    for (part, place), count in found.counts.items():
        assert ways[part][place]
        counts[part] += count
    assert counts == [part.count for part in need.parts]
    for place, cell in enumerate(world.cells):
        for name in NAMES:
            requested = sum(
                need.parts[part].shape.resources.get(name, 0) * count
                for (part, where), count in found.counts.items()
                if where == place
            )
            here = [item.resources.get(name, 0) for item in gone if item.cell_id == cell.cell_id]
            assert requested == 0 or requested <= world.free[cell.name][name] + sum(here)
    for scope in (None, *need.shape.scopes()):
        for name in {*NAMES, LICENCE} & set(world.allowances.get(scope, {})):
            requested = sum(part.shape.resources.get(name, 0) * part.count for part in need.parts)
            freed = world.freed_of(scope, name, gone)
            assert requested == 0 or requested <= world.allowances[scope][name] + freed


@settings(max_examples=examples(300))
@given(seeds)
@example(391)
@example(1419)
def test_gang_of_several_groups_gets_capacity_with_either_search(seed: int) -> None:
    """In the examples, room for one task after another leaves none for the last."""
    pools = Pools(seed)
    need = gang_of_three_groups(pools)
    running = units_of(pools)
    ways = [part.usable[0] for part in need.parts]
    exact = find_many(running, need, ways, most_units=8)
    found = find_many(running, need, ways, most_units=0)
    assert (found is None) == (exact is None)
