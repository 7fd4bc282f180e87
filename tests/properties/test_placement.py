"""Placement in random pools: nothing is over-committed, gangs are whole, kept room stays kept."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.placement.cycle.plan import PlacementPlan
from tests.properties.placement_worlds import WorldOptions, worlds
from tests.properties.plain_placement import Plain, ends_in_time, lines, need_of, needs_of
from tests.unit.domain.placement.pools import Pool

MANY = settings(max_examples=100)
limits = st.sampled_from([1, 3, 8, 1000])


def replayed(pool: Pool, plan: PlacementPlan) -> Plain:
    """The pool after the plan."""
    after = Plain(pool)
    for place, cell_id, count in lines(pool, plan):
        after.put(place, cell_id, count)
    return after


@MANY
@given(worlds(WorldOptions(pending_limits=True)), limits)
def test_a_plan_over_commits_nothing(pool: Pool, limit: int) -> None:
    plan = pool.place(limit)
    now = Plain(pool)
    at_once = {job: need_of(gang) for job, gang in pool.facts.gangs.items()}
    for place, cell_id, count in lines(pool, plan):
        one = pool.rows[place]
        assert count > 0
        assert now.matches(one, now.cells[cell_id])
        for _ in range(count):
            # Each task alone: it fits where it goes, and no quota and no token is short.
            assert now.fits(one, cell_id, {})
            # The minima of a gang start at once, however many its cells prepare at a time.
            assert now.slots[cell_id] > 0 or at_once.get(one.job_id, 0) > 0
            at_once[one.job_id] = at_once.get(one.job_id, 0) - 1
            plain = now.with_kept(place, is_in_turn=one.nominated_cell_id is not None)
            assert plain.violations(one) == []
            assert plain.short_tokens(one) == {}
            assert plain.full_key(one) is None
            now.put(place, cell_id)
    assert min(now.left, default=0) >= 0


@MANY
@given(worlds(), limits)
def test_pass_exceeds_its_limit_only_for_the_minima_of_a_gang(pool: Pool, limit: int) -> None:
    plan = pool.place(limit)
    needs = [need_of(gang) for gang in pool.facts.gangs.values()]
    assert plan.count <= max(limit, limit - 1 + max(needs, default=0))


@MANY
@given(worlds(), limits)
def test_a_gang_is_whole_or_absent_and_on_one_value_of_its_label(pool: Pool, limit: int) -> None:
    placed: Counter[int] = Counter()
    where: dict[int, set[int]] = {}
    for place, cell_id, count in lines(pool, pool.place(limit)):
        placed[pool.rows[place].group_id] += count
        where.setdefault(pool.rows[place].job_id, set()).add(cell_id)
    labels = {cell.cell_id: cell.labels for cell in pool.snapshot.cells}
    for job, gang in pool.facts.gangs.items():
        if job not in where:
            continue
        assert all(placed[group] >= need for group, need in needs_of(gang).items())
        assert sum(placed[group] for group in gang.group_ids) >= need_of(gang)
        if gang.group_by:
            there = [cell for cell in gang.cell_ids if cell in labels]
            values = {labels[cell].get(gang.group_by) for cell in [*where[job], *there]}
            assert len(values) == 1
            assert None not in values
            assert not gang.cell_ids or there


@MANY
@given(worlds(WorldOptions(pending_limits=True)), limits)
def test_the_same_snapshot_gives_the_same_plan(pool: Pool, limit: int) -> None:
    first, second = pool.place(limit), pool.place(limit)
    for name in ("placements", "shapes", "groups", "rejected", "complete", "cursor"):
        assert getattr(first, name) == getattr(second, name)


@MANY
@given(worlds())
def test_reserved_capacity_is_used_only_by_its_owner_or_as_backfill(pool: Pool) -> None:
    now = Plain(pool)
    for place, cell_id, count in lines(pool, pool.place()):
        one = pool.rows[place]
        for _ in range(count):
            if one.nominated_cell_id != cell_id and not ends_in_time(pool, one, cell_id):
                assert now.fits(one, cell_id, now.kept_for(one, but=place))
            now.put(place, cell_id)


@MANY
@given(worlds(WorldOptions(gangs=False)))
def test_lower_band_takes_no_capacity_that_a_higher_pending_task_could_use(pool: Pool) -> None:
    """A task that waits at the end had no place, or no right to one, when its band was through.

    Its own reasons are left out of account: it is tried again in the state of the pool
    before the first task of a less important band was placed.
    """
    if pool.snapshot.policy.strict_fifo:
        pool = pool.with_policy(strict_fifo=False)
    plan = pool.place()
    assert plan.complete
    after = replayed(pool, plan)
    now = Plain(pool)
    rest = list(lines(pool, plan))
    for band in sorted({one.shape.band for one in pool.rows}):
        while rest and pool.rows[rest[0][0]].shape.band <= band:
            now.put(*rest.pop(0))
        for place, one in enumerate(pool.rows):
            if one.shape.band == band and after.left[place]:
                assert now.left[place] == after.left[place]
                assert now.hindrance(place, claims=True) is not None


@MANY
@given(worlds())
def test_shape_excluded_by_screening_is_not_placed_by_a_full_pass(pool: Pool) -> None:
    screened = pool.screen()
    now = Plain(pool)
    for place, *_ in lines(pool, pool.place()):
        shape = pool.facts.waiting.shape_ids[place]
        is_running = shape in screened.of_running and now.is_running(pool.rows[place])
        assert shape in screened.full or is_running
    assert not screened.full & screened.heads
