"""Whom to evict, in stories; cells have 8 cores unless said otherwise, and are full."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np

from controlplane.domain.placement.model.snapshot import (
    CellFacts,
    EvictableAttempt,
    ReleasingCapacity,
    ShapeFacts,
)
from controlplane.domain.placement.preemption.candidates import Allowance, PreemptionRequest
from controlplane.domain.placement.preemption.preempt import Eviction, choose_evictions
from controlplane.domain.scopes import Scope, ScopeKind
from controlplane.domain.state.states import Band, CellState
from tests.harness.domain.facts import NOW

ALICE, BOB = 1, 2
OF_ALICE = Scope(ScopeKind.USER, ALICE)
LICENCE = "licence"


def runs(
    task_id: int, cell: int, cpu: int, band: Band = Band.BATCH, **more: Any
) -> EvictableAttempt:
    """An attempt of `cpu` cores that began `age` seconds ago; its job has its number."""
    age = more.pop("age", 60)
    resources = {"cpu": cpu} | more.pop("also", {})
    facts: dict[str, Any] = {
        "job_id": task_id,
        "group_id": task_id,
        "owner_id": BOB,
        "project_id": 1,
        "domain_id": 1,
        "began_at": NOW - timedelta(seconds=age),
        "stop_seconds": 10.0,
        **more,
    }
    return EvictableAttempt(task_id, cell_id=cell, band=band, resources=resources, **facts)


def asks(cpu: int, band: Band = Band.PRODUCTION, count: int = 1, **more: Any) -> PreemptionRequest:
    """Somebody who needs `cpu` cores, `count` times at once, on any cell."""
    resources = {"cpu": cpu} | more.pop("also", {})
    owner = more.pop("owner_id", ALICE)
    number = more.pop("number", 1)
    shape = ShapeFacts(number, band, owner, 1, 1, count, resources, "container")
    usable = more.pop("usable", None) or (np.ones(3, dtype=bool),)
    return PreemptionRequest(shape, number, 100 + number, count, usable, **more)


def choose(
    needs: Sequence[PreemptionRequest],
    running: Sequence[EvictableAttempt],
    *,
    spare: Sequence[int] = (0, 0, 0),
    leaving: Sequence[ReleasingCapacity] = (),
    allowances: Sequence[Allowance] = (),
    limit: int = 100,
) -> list[Eviction]:
    """Cells 0, 1, 2 of 8 cores, of which `spare` are free."""
    cells = [CellFacts(n, f"c{n}", CellState.READY, "one", {"cpu": 8}, {}) for n in range(3)]
    return choose_evictions(
        needs,
        cells,
        ["cpu"],
        np.array([spare]),
        running,
        leaving=leaving,
        allowances=allowances,
        now=NOW,
        limit=limit,
    )


def only(found: Sequence[Eviction]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The victims and cells of the one eviction."""
    (eviction,) = found
    return eviction.victims, eviction.cell_ids


def test_two_batch_tasks_go_rather_than_one_interactive_task() -> None:
    running = [runs(1, 0, 4, Band.INTERACTIVE), runs(2, 1, 2), runs(3, 1, 2)]
    assert only(choose([asks(4)], running)) == ((2, 3), (1,))


def test_as_few_go_as_will_do() -> None:
    running = [runs(1, 0, 2), runs(2, 0, 2), runs(3, 1, 8)]
    assert only(choose([asks(4)], running)) == ((3,), (1,))


def test_of_as_few_the_smallest_goes() -> None:
    running = [runs(1, 0, 8), runs(2, 1, 5), runs(3, 2, 6)]
    assert only(choose([asks(4)], running)) == ((2,), (1,))


def test_of_equals_the_youngest_goes_then_the_first_by_name() -> None:
    running = [runs(1, 0, 4, age=60), runs(2, 1, 4, age=5), runs(3, 2, 4, age=5)]
    assert only(choose([asks(4)], running)) == ((2,), (1,))


def test_nobody_of_the_same_band_or_a_higher_one_goes() -> None:
    running = [runs(1, 0, 8, Band.INTERACTIVE), runs(2, 1, 8, Band.PRODUCTION)]
    assert choose([asks(4, Band.INTERACTIVE)], running) == []
    assert choose([asks(4, Band.BATCH)], running) == []


def test_what_runs_at_most_once_never_goes() -> None:
    running = [runs(1, 0, 8, is_evictable=False), runs(2, 1, 2), runs(3, 1, 2)]
    assert only(choose([asks(4)], running)) == ((2, 3), (1,))


def test_nobody_goes_for_a_task_that_would_not_fit_even_then() -> None:
    running = [runs(1, 0, 4), runs(2, 0, 4, Band.PRODUCTION), runs(3, 1, 4)]
    assert choose([asks(5)], running) == []


def test_what_is_free_already_counts() -> None:
    running = [runs(1, 0, 5), runs(2, 1, 2)]
    assert only(choose([asks(4)], running, spare=(0, 2, 0))) == ((2,), (1,))


def test_where_enough_is_leaving_the_place_is_only_kept() -> None:
    running = [runs(1, 0, 8)]
    (eviction,) = choose([asks(4)], running, leaving=[ReleasingCapacity(2, {"cpu": 4})])
    assert (eviction.victims, eviction.cell_ids, eviction.counts) == ((), (2,), (1,))
    assert eviction.until == NOW + timedelta(seconds=30)


def test_what_is_leaving_and_kept_for_somebody_else_does_not_count() -> None:
    running = [runs(1, 0, 8)]
    # Room that is kept is taken off what is free, which may so fall below nothing.
    found = choose([asks(4)], running, spare=(0, 0, -4), leaving=[ReleasingCapacity(2, {"cpu": 4})])
    assert only(found) == ((1,), (0,))


def test_the_place_is_kept_until_the_slowest_victim_should_have_gone() -> None:
    running = [runs(1, 0, 4, stop_seconds=90.0), runs(2, 0, 4, stop_seconds=10.0)]
    (eviction,) = choose([asks(8)], running)
    assert eviction.until == NOW + timedelta(seconds=120)


def test_a_gang_goes_whole_wherever_its_members_are() -> None:
    running = [runs(1, 0, 4, gang=7), runs(2, 1, 1, gang=7), runs(3, 99, 1, gang=7)]
    assert only(choose([asks(4)], running)) == ((1, 2, 3), (0,))


def test_two_single_tasks_go_rather_than_a_gang_of_three() -> None:
    running = [runs(1, 0, 4, gang=7), runs(2, 1, 1, gang=7), runs(3, 1, 1, gang=7)]
    running += [runs(4, 2, 2), runs(5, 2, 2)]
    assert only(choose([asks(4)], running)) == ((4, 5), (2,))


def test_a_gang_of_which_one_member_must_stay_stays() -> None:
    running = [runs(1, 0, 4, gang=7), runs(2, 1, 1, gang=7, is_evictable=False)]
    assert choose([asks(4)], running) == []


def test_nobody_goes_twice_and_what_is_left_over_is_for_the_next() -> None:
    running = [runs(1, 0, 8), runs(2, 1, 8)]
    first, second, third = choose([asks(4, number=n) for n in (1, 2, 3)], running)
    assert (first.victims, first.cell_ids) == ((1,), (0,))
    assert (second.victims, second.cell_ids) == ((), (0,))
    assert (third.victims, third.cell_ids) == ((2,), (1,))


def test_no_more_tasks_than_the_limit_get_a_place() -> None:
    running = [runs(n, n, 8) for n in range(3)]
    assert len(choose([asks(8, number=n) for n in (1, 2, 3)], running, limit=2)) == 2


def test_a_preemptor_goes_only_where_it_may() -> None:
    running = [runs(1, 0, 4), runs(2, 1, 5)]
    need = asks(4, usable=(np.array([False, True, True]),))
    assert only(choose([need], running)) == ((2,), (1,))


def test_a_quota_is_cured_by_what_counts_against_it_alone() -> None:
    quota = Allowance(OF_ALICE, {"cpu": 6}, {"cpu": 0})
    running = [runs(1, 0, 4), runs(2, 1, 4, owner_id=ALICE)]
    found = choose([asks(4)], running, spare=(4, 0, 0), allowances=[quota])
    assert only(found) == ((2,), (0,))  # Bob's task on the same cell would be no help


def test_a_quota_is_no_reason_where_its_own_tasks_are_too_important() -> None:
    quota = Allowance(OF_ALICE, {"cpu": 6}, {"cpu": 0})
    running = [runs(1, 0, 4), runs(2, 1, 4, Band.PRODUCTION, owner_id=ALICE)]
    assert choose([asks(4)], running, spare=(4, 0, 0), allowances=[quota]) == []


def test_where_quota_and_room_are_lacking_one_victim_may_cure_both() -> None:
    quota = Allowance(OF_ALICE, {"running_tasks": 2}, {"running_tasks": 0})
    running = [runs(1, 0, 4), runs(2, 1, 2, owner_id=ALICE), runs(3, 2, 4, owner_id=ALICE)]
    assert only(choose([asks(4)], running, allowances=[quota])) == ((3,), (2,))


def test_an_important_victim_may_make_others_needless() -> None:
    """On cell 1 one INTERACTIVE task does for room and quota; on cell 0 a BATCH task goes, too."""
    quota = Allowance(OF_ALICE, {"cpu": 8}, {"cpu": 0})
    running = [
        runs(1, 0, 4, Band.INTERACTIVE),
        runs(2, 1, 4, Band.INTERACTIVE, owner_id=ALICE),
        *(runs(n, 2, 2, owner_id=ALICE) for n in (3, 4)),
    ]
    usable = (np.array([True, True, False]),)
    assert only(choose([asks(4, usable=usable)], running, allowances=[quota])) == ((2,), (1,))


def test_a_token_is_freed_by_whoever_holds_it() -> None:
    tokens = Allowance(None, {LICENCE: 1}, {LICENCE: 0})
    running = [runs(1, 0, 1), runs(2, 1, 1, also={LICENCE: 1})]
    need = asks(1, also={LICENCE: 1})
    assert only(choose([need], running, spare=(1, 1, 1), allowances=[tokens])) == ((2,), (0,))


def test_what_no_cell_has_and_no_token_is_makes_nobody_go() -> None:
    assert choose([asks(1, also={"fpga": 1})], [runs(1, 0, 8)]) == []


def test_a_whole_job_goes_where_one_job_too_many_runs() -> None:
    quota = Allowance(OF_ALICE, {"running_jobs": 2}, {"running_jobs": 0})
    running = [
        runs(1, 0, 1, owner_id=ALICE, job_id=1),
        runs(2, 0, 1, owner_id=ALICE, job_id=1),
        *(runs(n, 1, 1, owner_id=ALICE, job_id=2) for n in (3, 4, 5)),
    ]
    need = asks(1, is_new_job=True)
    found = choose([need], running, spare=(1, 1, 1), allowances=[quota])
    assert only(found) == ((1, 2), (1,))
    need = asks(1, is_new_job=False)
    assert only(choose([need], running, spare=(1, 1, 1), allowances=[quota])) == ((), (0,))


def test_one_quota_is_not_given_away_twice() -> None:
    quota = Allowance(OF_ALICE, {"running_tasks": 3}, {"running_tasks": 1})
    running = [runs(1, 0, 4, owner_id=ALICE), runs(2, 0, 4, owner_id=ALICE)]
    needs = [asks(1, number=n) for n in (1, 2, 3, 4)]
    found = choose(needs, running, spare=(0, 8, 0), allowances=[quota])
    assert [eviction.victims for eviction in found] == [(), (1,), (2,)]


def test_a_gang_gets_room_for_all_its_tasks_or_makes_nobody_go() -> None:
    running = [runs(1, 0, 8), runs(2, 1, 8), runs(3, 2, 8, Band.PRODUCTION)]
    (eviction,) = choose([asks(4, count=4)], running)
    assert eviction.victims == (1, 2)
    assert (eviction.cell_ids, eviction.counts) == ((0, 1), (2, 2))
    assert choose([asks(4, count=5)], running) == []


def test_a_gang_stays_within_one_set_of_cells() -> None:
    running = [runs(1, 0, 8), runs(2, 1, 4), runs(3, 2, 4)]
    racks = (np.array([True, False, False]), np.array([False, True, True]))
    assert only(choose([asks(4, count=2, usable=racks)], running)) == ((1,), (0,))
    assert choose([asks(4, count=3, usable=racks)], running) == []


def test_a_large_gang_among_many_small_tasks_takes_no_more_than_it_needs() -> None:
    running = [runs(8 * cell + n, cell, 1, age=n) for cell in range(3) for n in range(8)]
    (eviction,) = choose([asks(2, count=7)], running)
    assert len(eviction.victims) == 14
    assert sum(eviction.counts) == 7


def test_a_gang_of_two_groups_gets_room_for_both_at_once() -> None:
    running = [runs(1, 0, 8), runs(2, 1, 4), runs(3, 1, 4), runs(4, 2, 8, Band.PRODUCTION)]
    leader = asks(3, number=1)
    workers = asks(4, number=2, count=2)
    (eviction,) = choose([replace(workers, others=(leader,))], running)
    assert eviction.victims == (1, 2)
    places = [*zip(eviction.group_ids, eviction.cell_ids, eviction.counts, strict=True)]
    assert places == [(2, 0, 2), (1, 1, 1)]
    assert choose([replace(workers, count=4, others=(leader,))], running) == []


def test_each_group_of_a_gang_goes_only_where_it_may_and_all_to_one_set() -> None:
    first, second = (np.array([True, False, False]), np.array([False, True, False]))
    both = np.array([False, True, True])
    running = [runs(1, 0, 4), runs(2, 1, 4), runs(3, 2, 4)]
    leader = asks(4, number=1, usable=(first, second))
    worker = asks(4, number=2, usable=(first, both))
    (eviction,) = choose([replace(leader, others=(worker,))], running)
    assert (eviction.victims, eviction.cell_ids) == ((2, 3), (1, 2))


def test_a_gang_of_two_groups_counts_as_one_against_a_quota() -> None:
    quota = Allowance(OF_ALICE, {"cpu": 8, "running_jobs": 1}, {"cpu": 4, "running_jobs": 1})
    running = [runs(1, 0, 2, owner_id=ALICE), runs(2, 0, 2, owner_id=ALICE), runs(3, 1, 4)]
    leader, worker = asks(2, number=1, is_new_job=True), asks(4, number=2, is_new_job=True)
    need = replace(worker, job_id=leader.job_id, others=(leader,))
    (eviction,) = choose([need], running, spare=(0, 0, 8), allowances=[quota])
    assert eviction.victims == (1,)
