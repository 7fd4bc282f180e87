"""Which tasks to evict, in stories; cells have 8 cores unless stated, and are full."""

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


def request(
    cpu: int, band: Band = Band.PRODUCTION, count: int = 1, **more: Any
) -> PreemptionRequest:
    """Return a request for `cpu` cores, `count` times at once, on any cell."""
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


def test_two_batch_tasks_are_evicted_rather_than_one_interactive_task() -> None:
    running = [runs(1, 0, 4, Band.INTERACTIVE), runs(2, 1, 2), runs(3, 1, 2)]
    assert only(choose([request(4)], running)) == ((2, 3), (1,))


def test_fewest_sufficient_tasks_are_evicted() -> None:
    running = [runs(1, 0, 2), runs(2, 0, 2), runs(3, 1, 8)]
    assert only(choose([request(4)], running)) == ((3,), (1,))


def test_smallest_of_equally_few_victims_is_evicted() -> None:
    running = [runs(1, 0, 8), runs(2, 1, 5), runs(3, 2, 6)]
    assert only(choose([request(4)], running)) == ((2,), (1,))


def test_youngest_of_equal_victims_is_evicted_then_the_first_by_name() -> None:
    running = [runs(1, 0, 4, age=60), runs(2, 1, 4, age=5), runs(3, 2, 4, age=5)]
    assert only(choose([request(4)], running)) == ((2,), (1,))


def test_task_of_the_same_or_a_higher_band_is_never_evicted() -> None:
    running = [runs(1, 0, 8, Band.INTERACTIVE), runs(2, 1, 8, Band.PRODUCTION)]
    assert choose([request(4, Band.INTERACTIVE)], running) == []
    assert choose([request(4, Band.BATCH)], running) == []


def test_at_most_once_task_is_never_evicted() -> None:
    running = [runs(1, 0, 8, is_evictable=False), runs(2, 1, 2), runs(3, 1, 2)]
    assert only(choose([request(4)], running)) == ((2, 3), (1,))


def test_no_task_is_evicted_for_a_request_that_still_would_not_fit() -> None:
    running = [runs(1, 0, 4), runs(2, 0, 4, Band.PRODUCTION), runs(3, 1, 4)]
    assert choose([request(5)], running) == []


def test_free_capacity_reduces_the_victims() -> None:
    running = [runs(1, 0, 5), runs(2, 1, 2)]
    assert only(choose([request(4)], running, spare=(0, 2, 0))) == ((2,), (1,))


def test_releasing_capacity_is_reserved_without_further_victims() -> None:
    running = [runs(1, 0, 8)]
    (eviction,) = choose([request(4)], running, leaving=[ReleasingCapacity(2, {"cpu": 4})])
    assert (eviction.victims, eviction.cell_ids, eviction.counts) == ((), (2,), (1,))
    assert eviction.until == NOW + timedelta(seconds=30)


def test_releasing_capacity_reserved_for_others_does_not_count() -> None:
    running = [runs(1, 0, 8)]
    # Room that is kept is taken off what is free, which may so fall below nothing.
    found = choose(
        [request(4)], running, spare=(0, 0, -4), leaving=[ReleasingCapacity(2, {"cpu": 4})]
    )
    assert only(found) == ((1,), (0,))


def test_nomination_lasts_until_the_slowest_victim_has_stopped() -> None:
    running = [runs(1, 0, 4, stop_seconds=90.0), runs(2, 0, 4, stop_seconds=10.0)]
    (eviction,) = choose([request(8)], running)
    assert eviction.until == NOW + timedelta(seconds=120)


def test_gang_is_evicted_as_a_whole() -> None:
    running = [runs(1, 0, 4, gang=7), runs(2, 1, 1, gang=7), runs(3, 99, 1, gang=7)]
    assert only(choose([request(4)], running)) == ((1, 2, 3), (0,))


def test_two_single_tasks_are_evicted_rather_than_a_gang_of_three() -> None:
    running = [runs(1, 0, 4, gang=7), runs(2, 1, 1, gang=7), runs(3, 1, 1, gang=7)]
    running += [runs(4, 2, 2), runs(5, 2, 2)]
    assert only(choose([request(4)], running)) == ((4, 5), (2,))


def test_gang_with_a_protected_member_is_not_evicted() -> None:
    running = [runs(1, 0, 4, gang=7), runs(2, 1, 1, gang=7, is_evictable=False)]
    assert choose([request(4)], running) == []


def test_no_task_is_evicted_twice_and_surplus_capacity_serves_the_next_request() -> None:
    running = [runs(1, 0, 8), runs(2, 1, 8)]
    first, second, third = choose([request(4, number=n) for n in (1, 2, 3)], running)
    assert (first.victims, first.cell_ids) == ((1,), (0,))
    assert (second.victims, second.cell_ids) == ((), (0,))
    assert (third.victims, third.cell_ids) == ((2,), (1,))


def test_number_of_nominations_is_limited() -> None:
    running = [runs(n, n, 8) for n in range(3)]
    assert len(choose([request(8, number=n) for n in (1, 2, 3)], running, limit=2)) == 2


def test_victims_are_only_on_usable_cells() -> None:
    running = [runs(1, 0, 4), runs(2, 1, 5)]
    need = request(4, usable=(np.array([False, True, True]),))
    assert only(choose([need], running)) == ((2,), (1,))


def test_quota_shortage_is_resolved_by_victims_of_the_same_scope() -> None:
    quota = Allowance(OF_ALICE, {"cpu": 6}, {"cpu": 0})
    running = [runs(1, 0, 4), runs(2, 1, 4, owner_id=ALICE)]
    found = choose([request(4)], running, spare=(4, 0, 0), allowances=[quota])
    assert only(found) == ((2,), (0,))  # Bob's task on the same cell would be no help


def test_no_eviction_if_tasks_of_the_quota_have_a_high_band() -> None:
    quota = Allowance(OF_ALICE, {"cpu": 6}, {"cpu": 0})
    running = [runs(1, 0, 4), runs(2, 1, 4, Band.PRODUCTION, owner_id=ALICE)]
    assert choose([request(4)], running, spare=(4, 0, 0), allowances=[quota]) == []


def test_one_victim_can_free_quota_and_capacity() -> None:
    quota = Allowance(OF_ALICE, {"running_tasks": 2}, {"running_tasks": 0})
    running = [runs(1, 0, 4), runs(2, 1, 2, owner_id=ALICE), runs(3, 2, 4, owner_id=ALICE)]
    assert only(choose([request(4)], running, allowances=[quota])) == ((3,), (2,))


def test_one_interactive_victim_replaces_additional_batch_victims() -> None:
    """On cell 1 one INTERACTIVE task does for room and quota; on cell 0 a BATCH task goes, too."""
    quota = Allowance(OF_ALICE, {"cpu": 8}, {"cpu": 0})
    running = [
        runs(1, 0, 4, Band.INTERACTIVE),
        runs(2, 1, 4, Band.INTERACTIVE, owner_id=ALICE),
        *(runs(n, 2, 2, owner_id=ALICE) for n in (3, 4)),
    ]
    usable = (np.array([True, True, False]),)
    assert only(choose([request(4, usable=usable)], running, allowances=[quota])) == ((2,), (1,))


def test_token_is_freed_by_evicting_its_holder() -> None:
    tokens = Allowance(None, {LICENCE: 1}, {LICENCE: 0})
    running = [runs(1, 0, 1), runs(2, 1, 1, also={LICENCE: 1})]
    need = request(1, also={LICENCE: 1})
    assert only(choose([need], running, spare=(1, 1, 1), allowances=[tokens])) == ((2,), (0,))


def test_resource_missing_from_all_cells_causes_no_eviction() -> None:
    assert choose([request(1, also={"fpga": 1})], [runs(1, 0, 8)]) == []


def test_whole_job_is_evicted_for_a_running_jobs_quota() -> None:
    quota = Allowance(OF_ALICE, {"running_jobs": 2}, {"running_jobs": 0})
    running = [
        runs(1, 0, 1, owner_id=ALICE, job_id=1),
        runs(2, 0, 1, owner_id=ALICE, job_id=1),
        *(runs(n, 1, 1, owner_id=ALICE, job_id=2) for n in (3, 4, 5)),
    ]
    need = request(1, is_new_job=True)
    found = choose([need], running, spare=(1, 1, 1), allowances=[quota])
    assert only(found) == ((1, 2), (1,))
    need = request(1, is_new_job=False)
    assert only(choose([need], running, spare=(1, 1, 1), allowances=[quota])) == ((), (0,))


def test_freed_quota_is_used_only_once() -> None:
    quota = Allowance(OF_ALICE, {"running_tasks": 3}, {"running_tasks": 1})
    running = [runs(1, 0, 4, owner_id=ALICE), runs(2, 0, 4, owner_id=ALICE)]
    needs = [request(1, number=n) for n in (1, 2, 3, 4)]
    found = choose(needs, running, spare=(0, 8, 0), allowances=[quota])
    assert [eviction.victims for eviction in found] == [(), (1,), (2,)]


def test_gang_gets_capacity_for_all_its_tasks_or_evicts_none() -> None:
    running = [runs(1, 0, 8), runs(2, 1, 8), runs(3, 2, 8, Band.PRODUCTION)]
    (eviction,) = choose([request(4, count=4)], running)
    assert eviction.victims == (1, 2)
    assert (eviction.cell_ids, eviction.counts) == ((0, 1), (2, 2))
    assert choose([request(4, count=5)], running) == []


def test_a_gang_stays_within_one_set_of_cells() -> None:
    running = [runs(1, 0, 8), runs(2, 1, 4), runs(3, 2, 4)]
    racks = (np.array([True, False, False]), np.array([False, True, True]))
    assert only(choose([request(4, count=2, usable=racks)], running)) == ((1,), (0,))
    assert choose([request(4, count=3, usable=racks)], running) == []


def test_large_gang_evicts_no_more_small_tasks_than_needed() -> None:
    running = [runs(8 * cell + n, cell, 1, age=n) for cell in range(3) for n in range(8)]
    (eviction,) = choose([request(2, count=7)], running)
    assert len(eviction.victims) == 14
    assert sum(eviction.counts) == 7


def test_gang_of_two_groups_gets_capacity_for_both_at_once() -> None:
    running = [runs(1, 0, 8), runs(2, 1, 4), runs(3, 1, 4), runs(4, 2, 8, Band.PRODUCTION)]
    leader = request(3, number=1)
    workers = request(4, number=2, count=2)
    (eviction,) = choose([replace(workers, others=(leader,))], running)
    assert eviction.victims == (1, 2)
    places = [*zip(eviction.group_ids, eviction.cell_ids, eviction.counts, strict=True)]
    assert places == [(2, 0, 2), (1, 1, 1)]
    assert choose([replace(workers, count=4, others=(leader,))], running) == []


def test_groups_of_a_gang_use_only_allowed_cells_within_one_set() -> None:
    first, second = (np.array([True, False, False]), np.array([False, True, False]))
    both = np.array([False, True, True])
    running = [runs(1, 0, 4), runs(2, 1, 4), runs(3, 2, 4)]
    leader = request(4, number=1, usable=(first, second))
    worker = request(4, number=2, usable=(first, both))
    (eviction,) = choose([replace(leader, others=(worker,))], running)
    assert (eviction.victims, eviction.cell_ids) == ((2, 3), (1, 2))


def test_gang_of_two_groups_counts_as_one_job_against_a_quota() -> None:
    quota = Allowance(OF_ALICE, {"cpu": 8, "running_jobs": 1}, {"cpu": 4, "running_jobs": 1})
    running = [runs(1, 0, 2, owner_id=ALICE), runs(2, 0, 2, owner_id=ALICE), runs(3, 1, 4)]
    leader, worker = request(2, number=1, is_new_job=True), request(4, number=2, is_new_job=True)
    need = replace(worker, job_id=leader.job_id, others=(leader,))
    (eviction,) = choose([need], running, spare=(0, 0, 8), allowances=[quota])
    assert eviction.victims == (1,)
