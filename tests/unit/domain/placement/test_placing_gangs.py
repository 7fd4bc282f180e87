"""Placing gangs: the minima at once or not at all, the rest as it comes, limits and misfits."""

from dataclasses import replace
from typing import Any

from controlplane.contract.states import TaskState as S
from controlplane.domain.placement.model.snapshot import CellFacts, GangFacts
from controlplane.domain.state.gangs import GangGroupFacts
from tests.unit.domain.placement import pools
from tests.unit.domain.placement.pools import Outcome, Row, gang

GANG = 7


def cell(number: int, cpu: int, **changes: Any) -> CellFacts:
    return pools.cell(number, name=f"c{number}", capacity={"cpu": cpu}, **changes)


def shape(group: int, count: int, *, job: int = GANG, cpu: int = 1, **rest: Any) -> Row:
    """Rows of the gang's job are members of it."""
    facts = {"resources": {"cpu": cpu}, "coscheduled": job == GANG, **rest}
    return pools.row(group, count, job=job, **facts)


def run(
    cells: list[CellFacts], *rows: Row, gang: GangFacts | None = None, limit: int = 100
) -> Outcome:
    gangs = {} if gang is None else {GANG: gang}
    return pools.run(cells, *rows, gangs=gangs, limit=limit)


def test_gang_with_fitting_minimum_is_placed_with_further_members_if_they_fit() -> None:
    outcome = run([cell(1, 3)], shape(1, 4), gang=gang((1, 2, 4)))
    assert outcome.placed == {1: 3}
    assert outcome.reasons[1]["code"] == "insufficient_resources"
    assert outcome.plan.complete is True


def test_pass_at_its_limit_starts_no_further_gang() -> None:
    rows = [pools.row(job, 2, job=job, coscheduled=True) for job in (1, 2, 3)]
    gangs = {job: gang((job, 2, 2)) for job in (1, 2, 3)}
    outcome = pools.run([pools.cell(1)], *rows, gangs=gangs, limit=3)
    assert outcome.placed == {1: 2, 2: 2}
    assert outcome.plan.complete is False


def test_gang_is_placed_with_at_most_its_pending_members() -> None:
    assert run([cell(1, 9)], shape(1, 3), gang=gang((1, 2, 3))).placed == {1: 3}


def test_over_committed_cell_takes_nothing_and_blocks_no_other_cell() -> None:
    shrunk = replace(cell(1, 3), used={"cpu": 5})
    outcome = run([shrunk, cell(2, 2)], shape(1, 3, job=1))
    assert (outcome.placed, set(outcome.plan.placements.cell_ids)) == ({1: 2}, {2})


def test_a_gang_whose_minimum_does_not_fit_takes_nothing() -> None:
    outcome = run([cell(1, 3)], shape(1, 4), gang=gang((1, 4, 4)))
    assert outcome.placed == {}
    reason = outcome.reasons[1]
    assert (reason["code"], reason["need"], reason["have"]) == ("waiting_for_gang", 4, 3)
    assert "c1 comes closest and lacks 1 cpu" in reason["text"]


def test_capacity_not_used_by_a_gang_is_available_to_others() -> None:
    outcome = run([cell(1, 3)], shape(1, 4), shape(9, 3, job=9), gang=gang((1, 4, 4)))
    assert outcome.placed == {9: 3}


def test_gang_is_placed_only_if_every_group_fits() -> None:
    both = gang((1, 2, 2), (2, 2, 2))
    assert run([cell(1, 4)], shape(1, 2), shape(2, 2), gang=both).placed == {1: 2, 2: 2}
    short = run([cell(1, 3)], shape(1, 2), shape(2, 2), gang=both)
    assert short.placed == {}
    assert {group: reason["have"] for group, reason in short.reasons.items()} == {1: 3, 2: 3}


def test_gang_reason_has_the_first_misfit_and_the_count_before_it() -> None:
    three = gang((1, 2, 2), (2, 1, 1), (3, 1, 1))
    outcome = run([cell(1, 2)], shape(1, 2), shape(2, 1, cpu=5), shape(3, 1), gang=three)
    assert outcome.reasons[3]["have"] == 2
    assert "lacks 3 of 5 cpu" in outcome.reasons[3]["text"]


def test_job_minimum_must_be_placed_at_once() -> None:
    wanted = gang((1, 1, 3), (2, 1, 1), least=4)
    assert run([cell(1, 4)], shape(1, 3), shape(2, 1), gang=wanted).placed == {1: 3, 2: 1}
    assert run([cell(1, 3)], shape(1, 3), shape(2, 1), gang=wanted).placed == {}


def test_members_that_cannot_start_yet_block_the_gang() -> None:
    outcome = run([cell(1, 9)], shape(1, 1), gang=gang((1, 2, 2)))
    assert outcome.placed == {}
    assert outcome.reasons[1]["text"].endswith(
        "2 more tasks must be placed together, 1 could be; the other members are not ready yet"
    )


def test_members_of_one_group_in_several_shapes_count_together() -> None:
    cells = [cell(1, 2), cell(2, 2)]
    shapes = [shape(1, 1, avoid_cell_id=1), shape(1, 2)]
    outcome = run(cells, *shapes, gang=gang((1, 3, 3)))
    assert outcome.placed == {1: 3}
    rows = outcome.plan.placements
    assert dict(zip(rows.avoid_cell_ids, rows.cell_ids, strict=False))[(1,)] == 2
    assert run([cell(1, 2)], *shapes, gang=gang((1, 3, 3))).placed == {}


def test_gang_above_its_minimum_places_further_members_singly() -> None:
    facts = GangFacts((1,), (GangGroupFacts({S.RUNNING: 2, S.PENDING: 3}, 2),), 2)
    assert run([cell(1, 1)], shape(1, 3), gang=facts).placed == {1: 1}


def alike(*sizes: tuple[int, int], cells: list[CellFacts]) -> Outcome:
    """A gang of one group for each of (members, cpu of each), all of which must start together."""
    rows = [
        shape(n, members, job=n, cpu=cpu, coscheduled=True)
        for n, (members, cpu) in enumerate(sizes)
    ]
    gangs = {n: gang((n, members, members)) for n, (members, _) in enumerate(sizes)}
    return pools.run(cells, *rows, gangs=gangs)


def test_identical_gangs_share_their_reason() -> None:
    outcome = alike((4, 1), (4, 1), (2, 2), (3, 1), (4, 1), cells=[cell(1, 3)])
    assert outcome.placed == {3: 3}
    found = outcome.reasons
    assert found[0] == found[1] == found[4]
    assert (found[0]["need"], found[0]["have"]) == (4, 3)
    assert (found[2]["need"], found[2]["have"]) == (2, 1)


def test_misfit_of_one_gang_does_not_affect_another() -> None:
    rows = [
        shape(1, 2, job=1, coscheduled=True),
        shape(1, 2, job=1, avoid_cell_id=9, coscheduled=True),
        shape(3, 2, job=2, coscheduled=True),
        shape(4, 2, job=2, avoid_cell_id=9, coscheduled=True),
    ]
    gangs = {1: gang((1, 2, 4), (2, 2, 2)), 2: gang((3, 2, 2), (4, 2, 2))}
    outcome = pools.run([cell(1, 4)], *rows, gangs=gangs)
    assert outcome.placed == {3: 2, 4: 2}


def test_gang_is_tried_at_the_turn_of_its_first_shape() -> None:
    shapes = [shape(1, 1), shape(9, 3, job=9), shape(2, 1)]
    outcome = run([cell(1, 3)], *shapes, gang=gang((1, 1, 1), (2, 1, 1)))
    assert outcome.placed == {1: 1, 2: 1, 9: 1}


def test_gang_minimum_may_exceed_the_pass_limit_but_further_members_may_not() -> None:
    outcome = run([cell(1, 9)], shape(1, 5), gang=gang((1, 3, 5)), limit=2)
    assert outcome.placed == {1: 3}
    assert (outcome.plan.complete, outcome.plan.count) == (False, 3)
    assert run([cell(1, 9)], shape(1, 5), gang=gang((1, 3, 5)), limit=4).placed == {1: 4}
    after = run([cell(1, 9)], shape(1, 3), shape(9, 1, job=9), gang=gang((1, 3, 3)), limit=3)
    assert after.placed == {1: 3}
    assert after.plan.complete is False


def test_pass_below_its_limit_is_complete() -> None:
    assert run([cell(1, 9)], shape(1, 3, job=1), limit=4).plan.complete is True
    assert run([cell(1, 9)], shape(1, 3, job=1), limit=3).plan.complete is False


def test_identical_misfits_share_their_reason() -> None:
    outcome = run(
        [cell(1, 1)], shape(1, 1, job=1, cpu=2), shape(2, 1, job=2, cpu=2), shape(3, 1, job=3)
    )
    assert outcome.placed == {3: 1}
    assert outcome.reasons[1] == outcome.reasons[2]


def test_misfits_do_not_count_against_the_pass_limit() -> None:
    large = [shape(n, 1, job=n, cpu=5) for n in (1, 2)]
    assert run([cell(1, 2)], *large, shape(3, 2, job=3), limit=1).placed == {3: 1}


def test_gang_reason_of_a_pool_without_a_cell() -> None:
    outcome = run([], shape(1, 2), gang=gang((1, 2, 2)))
    assert outcome.placed == {}
    reason = outcome.reasons[1]
    assert (reason["need"], reason["have"]) == (2, 0)
    assert reason["text"].endswith("; the pool has no cell")


def test_misfit_applies_only_to_the_same_request_type_and_avoided_cell() -> None:
    cells = [cell(1, 2), cell(2, 1)]
    outcome = run(cells, shape(1, 1, job=1, cpu=2, avoid_cell_id=9), shape(2, 1, job=2, cpu=2))
    assert outcome.placed == {1: 1}
    aside = run([cell(1, 1), cell(2, 9)], shape(1, 9, job=1, avoid_cell_id=2), shape(2, 1, job=2))
    assert aside.placed == {1: 1, 2: 1}


def test_avoided_cell_is_used_only_if_no_other_cell_could_hold_the_task() -> None:
    assert run([cell(1, 5), cell(2, 1)], shape(1, 3, job=1, avoid_cell_id=1)).placed == {1: 1}
    assert run([cell(1, 5), cell(2, 1)], shape(1, 1, job=1, cpu=2, avoid_cell_id=1)).placed == {
        1: 1
    }


def test_missing_resource_of_a_cell_counts_as_zero() -> None:
    odd = shape(1, 1, job=1, resources={"gpu": 1})
    outcome = run([cell(1, 5)], odd)
    assert outcome.placed == {}
    assert outcome.reasons[1]["shortfall"] == {"gpu": 1}


def test_resources_not_requested_by_a_shape_stay_free() -> None:
    both = replace(cell(1, 9), capacity={"cpu": 9, "gpu": 1})
    large = shape(2, 1, job=2, resources={"gpu": 2})
    small = shape(3, 2, job=3, resources={"gpu": 1})
    assert run([both], shape(1, 3, job=1), large, small).placed == {1: 3, 3: 1}
