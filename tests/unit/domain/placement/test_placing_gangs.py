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


def test_a_gang_whose_minimum_fits_is_placed_and_the_rest_as_it_comes() -> None:
    outcome = run([cell(1, 3)], shape(1, 4), gang=gang((1, 2, 4)))
    assert outcome.placed == {1: 3}
    assert outcome.reasons[1]["code"] == "insufficient_resources"
    assert outcome.plan.complete is True


def test_a_pass_that_reached_its_limit_begins_no_further_gang() -> None:
    rows = [pools.row(job, 2, job=job, coscheduled=True) for job in (1, 2, 3)]
    gangs = {job: gang((job, 2, 2)) for job in (1, 2, 3)}
    outcome = pools.run([pools.cell(1)], *rows, gangs=gangs, limit=3)
    assert outcome.placed == {1: 2, 2: 2}
    assert outcome.plan.complete is False


def test_no_more_of_a_gang_are_placed_than_wait() -> None:
    assert run([cell(1, 9)], shape(1, 3), gang=gang((1, 2, 3))).placed == {1: 3}


def test_a_cell_that_holds_more_than_it_has_takes_nothing_and_hinders_nobody() -> None:
    shrunk = replace(cell(1, 3), used={"cpu": 5})
    outcome = run([shrunk, cell(2, 2)], shape(1, 3, job=1))
    assert (outcome.placed, set(outcome.plan.placements.cell_ids)) == ({1: 2}, {2})


def test_a_gang_whose_minimum_does_not_fit_takes_nothing() -> None:
    outcome = run([cell(1, 3)], shape(1, 4), gang=gang((1, 4, 4)))
    assert outcome.placed == {}
    reason = outcome.reasons[1]
    assert (reason["code"], reason["need"], reason["have"]) == ("waiting_for_gang", 4, 3)
    assert "c1 comes closest and lacks 1 cpu" in reason["text"]


def test_what_a_gang_did_not_take_is_there_for_others() -> None:
    outcome = run([cell(1, 3)], shape(1, 4), shape(9, 3, job=9), gang=gang((1, 4, 4)))
    assert outcome.placed == {9: 3}


def test_every_group_of_a_gang_must_fit_and_each_is_told_why_it_waits() -> None:
    both = gang((1, 2, 2), (2, 2, 2))
    assert run([cell(1, 4)], shape(1, 2), shape(2, 2), gang=both).placed == {1: 2, 2: 2}
    short = run([cell(1, 3)], shape(1, 2), shape(2, 2), gang=both)
    assert short.placed == {}
    assert {group: reason["have"] for group, reason in short.reasons.items()} == {1: 3, 2: 3}


def test_the_first_hindrance_is_told_and_nothing_behind_it_is_counted() -> None:
    three = gang((1, 2, 2), (2, 1, 1), (3, 1, 1))
    outcome = run([cell(1, 2)], shape(1, 2), shape(2, 1, cpu=5), shape(3, 1), gang=three)
    assert outcome.reasons[3]["have"] == 2
    assert "lacks 3 cpu" in outcome.reasons[3]["text"]


def test_the_jobs_own_minimum_is_needed_at_once_too() -> None:
    wanted = gang((1, 1, 3), (2, 1, 1), least=4)
    assert run([cell(1, 4)], shape(1, 3), shape(2, 1), gang=wanted).placed == {1: 3, 2: 1}
    assert run([cell(1, 3)], shape(1, 3), shape(2, 1), gang=wanted).placed == {}


def test_members_that_cannot_start_yet_hold_the_others_back() -> None:
    outcome = run([cell(1, 9)], shape(1, 1), gang=gang((1, 2, 2)))
    assert outcome.placed == {}
    assert outcome.reasons[1]["text"].endswith(
        "2 more must be placed at once, 1 could be; the others are not ready yet"
    )


def test_members_of_one_group_in_several_shapes_count_together() -> None:
    cells = [cell(1, 2), cell(2, 2)]
    shapes = [shape(1, 1, avoid_cell_id=1), shape(1, 2)]
    outcome = run(cells, *shapes, gang=gang((1, 3, 3)))
    assert outcome.placed == {1: 3}
    rows = outcome.plan.placements
    assert dict(zip(rows.avoid_cell_ids, rows.cell_ids, strict=False))[(1,)] == 2
    assert run([cell(1, 2)], *shapes, gang=gang((1, 3, 3))).placed == {}


def test_a_gang_that_has_its_minimum_places_the_rest_one_by_one() -> None:
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


def test_gangs_that_are_alike_wait_for_the_same_reason_and_no_other_gang_does() -> None:
    outcome = alike((4, 1), (4, 1), (2, 2), (3, 1), (4, 1), cells=[cell(1, 3)])
    assert outcome.placed == {3: 3}
    found = outcome.reasons
    assert found[0] == found[1] == found[4]
    assert (found[0]["need"], found[0]["have"]) == (4, 3)
    assert (found[2]["need"], found[2]["have"]) == (2, 1)


def test_a_gang_with_a_group_that_is_not_ready_says_nothing_of_one_that_is() -> None:
    rows = [
        shape(1, 2, job=1, coscheduled=True),
        shape(1, 2, job=1, avoid_cell_id=9, coscheduled=True),
        shape(3, 2, job=2, coscheduled=True),
        shape(4, 2, job=2, avoid_cell_id=9, coscheduled=True),
    ]
    gangs = {1: gang((1, 2, 4), (2, 2, 2)), 2: gang((3, 2, 2), (4, 2, 2))}
    outcome = pools.run([cell(1, 4)], *rows, gangs=gangs)
    assert outcome.placed == {3: 2, 4: 2}


def test_a_gang_has_its_turn_with_its_first_shape() -> None:
    shapes = [shape(1, 1), shape(9, 3, job=9), shape(2, 1)]
    outcome = run([cell(1, 3)], *shapes, gang=gang((1, 1, 1), (2, 1, 1)))
    assert outcome.placed == {1: 1, 2: 1, 9: 1}


def test_a_gang_may_need_more_than_is_left_of_the_pass_but_its_rest_may_not() -> None:
    outcome = run([cell(1, 9)], shape(1, 5), gang=gang((1, 3, 5)), limit=2)
    assert outcome.placed == {1: 3}
    assert (outcome.plan.complete, outcome.plan.count) == (False, 3)
    assert run([cell(1, 9)], shape(1, 5), gang=gang((1, 3, 5)), limit=4).placed == {1: 4}
    after = run([cell(1, 9)], shape(1, 3), shape(9, 1, job=9), gang=gang((1, 3, 3)), limit=3)
    assert after.placed == {1: 3}
    assert after.plan.complete is False


def test_a_pass_that_placed_less_than_its_limit_looked_at_everything() -> None:
    assert run([cell(1, 9)], shape(1, 3, job=1), limit=4).plan.complete is True
    assert run([cell(1, 9)], shape(1, 3, job=1), limit=3).plan.complete is False


def test_what_did_not_fit_is_not_looked_for_again_but_told_again() -> None:
    outcome = run(
        [cell(1, 1)], shape(1, 1, job=1, cpu=2), shape(2, 1, job=2, cpu=2), shape(3, 1, job=3)
    )
    assert outcome.placed == {3: 1}
    assert outcome.reasons[1] == outcome.reasons[2]


def test_what_did_not_fit_takes_nothing_of_the_limit_and_adds_nothing_to_it() -> None:
    large = [shape(n, 1, job=n, cpu=5) for n in (1, 2)]
    assert run([cell(1, 2)], *large, shape(3, 2, job=3), limit=1).placed == {3: 1}


def test_a_gang_in_a_pool_without_a_cell_says_so() -> None:
    outcome = run([], shape(1, 2), gang=gang((1, 2, 2)))
    assert outcome.placed == {}
    reason = outcome.reasons[1]
    assert (reason["need"], reason["have"]) == (2, 0)
    assert reason["text"].endswith("; the pool has no cell")


def test_a_misfit_is_of_one_request_one_type_and_one_cell_to_avoid() -> None:
    cells = [cell(1, 2), cell(2, 1)]
    outcome = run(cells, shape(1, 1, job=1, cpu=2, avoid_cell_id=9), shape(2, 1, job=2, cpu=2))
    assert outcome.placed == {1: 1}
    aside = run([cell(1, 1), cell(2, 9)], shape(1, 9, job=1, avoid_cell_id=2), shape(2, 1, job=2))
    assert aside.placed == {1: 1, 2: 1}


def test_an_avoided_cell_is_used_only_where_no_other_could_ever_take_it() -> None:
    assert run([cell(1, 5), cell(2, 1)], shape(1, 3, job=1, avoid_cell_id=1)).placed == {1: 1}
    assert run([cell(1, 5), cell(2, 1)], shape(1, 1, job=1, cpu=2, avoid_cell_id=1)).placed == {
        1: 1
    }


def test_a_resource_that_a_cell_does_not_have_is_none_of() -> None:
    odd = shape(1, 1, job=1, resources={"gpu": 1})
    outcome = run([cell(1, 5)], odd)
    assert outcome.placed == {}
    assert outcome.reasons[1]["shortfall"] == {"gpu": 1}


def test_what_a_shape_does_not_ask_for_stays_as_it_is() -> None:
    both = replace(cell(1, 9), capacity={"cpu": 9, "gpu": 1})
    large = shape(2, 1, job=2, resources={"gpu": 2})
    small = shape(3, 2, job=3, resources={"gpu": 1})
    assert run([both], shape(1, 3, job=1), large, small).placed == {1: 3, 3: 1}
