"""Placing gangs: the minima at once or not at all, the rest as it comes, limits and misfits."""

from collections import Counter
from dataclasses import replace
from typing import Any

from controlplane.contract.states import TaskState as S
from controlplane.domain.gangs import GangGroup
from controlplane.domain.placement.place import Plan, place
from controlplane.domain.snapshots import CellFacts, GangFacts, PendingShape, PlacementSnapshot
from controlplane.domain.states import Band, CellState
from tests.unit.domain.facts import NOW

GANG = 7


def cell(number: int, cpu: int) -> CellFacts:
    types = frozenset({"container"})
    return CellFacts(number, f"c{number}", CellState.READY, "one", {"cpu": cpu}, {}, types)


def shape(group: int, count: int, *, job: int = GANG, cpu: int = 1, **rest: Any) -> PendingShape:
    return PendingShape(group, job, Band.BATCH, count, {"cpu": cpu}, "container", **rest)


def gang(*groups: tuple[int, int, int], least: int | None = None) -> GangFacts:
    """Groups as (id, minimum, waiting)."""
    members = tuple(GangGroup({S.PENDING: waiting}, minimum) for _, minimum, waiting in groups)
    wanted = sum(minimum for _, minimum, _ in groups) if least is None else least
    return GangFacts(tuple(group for group, _, _ in groups), members, wanted)


def run(
    cells: list[CellFacts], *shapes: PendingShape, gang: GangFacts | None = None, limit: int = 100
) -> Plan:
    gangs = {} if gang is None else {GANG: gang}
    return place(PlacementSnapshot(1, NOW, tuple(cells), shapes, gangs=gangs), limit=limit)


def placed(plan: Plan) -> dict[int, int]:
    """How many of each group."""
    counts: Counter[int] = Counter()
    for group, count in zip(plan.placements.group_ids, plan.placements.counts, strict=True):
        counts[group] += count
    return dict(counts)


def reasons(plan: Plan) -> dict[int, dict[str, Any]]:
    return {item.group_id: dict(item.reason) for item in plan.explanations}


def test_a_gang_whose_minimum_fits_is_placed_and_the_rest_as_it_comes() -> None:
    plan = run([cell(1, 3)], shape(1, 4), gang=gang((1, 2, 4)))
    assert placed(plan) == {1: 3}
    assert reasons(plan)[1]["code"] == "insufficient_resources"
    assert plan.complete is True


def test_no_more_of_a_gang_are_placed_than_wait() -> None:
    assert placed(run([cell(1, 9)], shape(1, 3), gang=gang((1, 2, 3)))) == {1: 3}


def test_a_cell_that_holds_more_than_it_has_takes_nothing_and_hinders_nobody() -> None:
    shrunk = replace(cell(1, 3), used={"cpu": 5})
    plan = run([shrunk, cell(2, 2)], shape(1, 3, job=1))
    assert (placed(plan), set(plan.placements.cell_ids)) == ({1: 2}, {2})


def test_a_gang_whose_minimum_does_not_fit_takes_nothing() -> None:
    plan = run([cell(1, 3)], shape(1, 4), gang=gang((1, 4, 4)))
    assert placed(plan) == {}
    reason = reasons(plan)[1]
    assert (reason["code"], reason["need"], reason["have"]) == ("waiting_for_gang", 4, 3)
    assert "c1 comes closest and lacks 1 cpu" in reason["text"]


def test_what_a_gang_did_not_take_is_there_for_others() -> None:
    plan = run([cell(1, 3)], shape(1, 4), shape(9, 3, job=9), gang=gang((1, 4, 4)))
    assert placed(plan) == {9: 3}


def test_every_group_of_a_gang_must_fit_and_each_is_told_why_it_waits() -> None:
    both = gang((1, 2, 2), (2, 2, 2))
    assert placed(run([cell(1, 4)], shape(1, 2), shape(2, 2), gang=both)) == {1: 2, 2: 2}
    short = run([cell(1, 3)], shape(1, 2), shape(2, 2), gang=both)
    assert placed(short) == {}
    assert {group: reason["have"] for group, reason in reasons(short).items()} == {1: 3, 2: 3}


def test_the_first_hindrance_is_told_and_nothing_behind_it_is_counted() -> None:
    three = gang((1, 2, 2), (2, 1, 1), (3, 1, 1))
    plan = run([cell(1, 2)], shape(1, 2), shape(2, 1, cpu=5), shape(3, 1), gang=three)
    assert reasons(plan)[3]["have"] == 2
    assert "lacks 5 cpu" in reasons(plan)[3]["text"]


def test_the_jobs_own_minimum_is_needed_at_once_too() -> None:
    wanted = gang((1, 1, 3), (2, 1, 1), least=4)
    assert placed(run([cell(1, 4)], shape(1, 3), shape(2, 1), gang=wanted)) == {1: 3, 2: 1}
    assert placed(run([cell(1, 3)], shape(1, 3), shape(2, 1), gang=wanted)) == {}


def test_members_that_cannot_start_yet_hold_the_others_back() -> None:
    plan = run([cell(1, 9)], shape(1, 1), gang=gang((1, 2, 2)))
    assert placed(plan) == {}
    assert reasons(plan)[1]["text"].endswith(
        "2 more must be placed at once, 1 could be; the others are not ready yet"
    )


def test_members_of_one_group_in_several_shapes_count_together() -> None:
    cells = [cell(1, 2), cell(2, 2)]
    shapes = [shape(1, 1, avoid_cell_id=1), shape(1, 2)]
    plan = run(cells, *shapes, gang=gang((1, 3, 3)))
    assert placed(plan) == {1: 3}
    rows = plan.placements
    assert dict(zip(rows.avoid_cell_ids, rows.cell_ids, strict=False))[1] == 2
    assert placed(run([cell(1, 2)], *shapes, gang=gang((1, 3, 3)))) == {}


def test_a_gang_that_has_its_minimum_places_the_rest_one_by_one() -> None:
    facts = GangFacts((1,), (GangGroup({S.RUNNING: 2, S.PENDING: 3}, 2),), 2)
    assert placed(run([cell(1, 1)], shape(1, 3), gang=facts)) == {1: 1}


def alike(*sizes: tuple[int, int], cells: list[CellFacts]) -> Plan:
    """A gang of one group for each of (members, cpu of each), all of which must start together."""
    shapes = tuple(shape(n, members, job=n, cpu=cpu) for n, (members, cpu) in enumerate(sizes))
    gangs = {n: gang((n, members, members)) for n, (members, _) in enumerate(sizes)}
    return place(PlacementSnapshot(1, NOW, tuple(cells), shapes, gangs=gangs), limit=100)


def test_gangs_that_are_alike_wait_for_the_same_reason_and_no_other_gang_does() -> None:
    plan = alike((4, 1), (4, 1), (2, 2), (3, 1), (4, 1), cells=[cell(1, 3)])
    assert placed(plan) == {3: 3}
    found = reasons(plan)
    assert found[0] == found[1] == found[4]
    assert (found[0]["need"], found[0]["have"]) == (4, 3)
    assert (found[2]["need"], found[2]["have"]) == (2, 1)


def test_a_gang_with_a_group_that_is_not_ready_says_nothing_of_one_that_is() -> None:
    shapes = (
        shape(1, 2, job=1),
        shape(1, 2, job=1, avoid_cell_id=9),
        shape(3, 2, job=2),
        shape(4, 2, job=2, avoid_cell_id=9),
    )
    gangs = {1: gang((1, 2, 4), (2, 2, 2)), 2: gang((3, 2, 2), (4, 2, 2))}
    cells = (cell(1, 4),)
    plan = place(PlacementSnapshot(1, NOW, cells, shapes, gangs=gangs), limit=100)
    assert placed(plan) == {3: 2, 4: 2}


def test_a_gang_has_its_turn_with_its_first_shape() -> None:
    shapes = [shape(1, 1), shape(9, 3, job=9), shape(2, 1)]
    plan = run([cell(1, 3)], *shapes, gang=gang((1, 1, 1), (2, 1, 1)))
    assert placed(plan) == {1: 1, 2: 1, 9: 1}


def test_a_gang_may_need_more_than_is_left_of_the_pass_but_its_rest_may_not() -> None:
    plan = run([cell(1, 9)], shape(1, 5), gang=gang((1, 3, 5)), limit=2)
    assert placed(plan) == {1: 3}
    assert (plan.complete, plan.count) == (False, 3)
    assert placed(run([cell(1, 9)], shape(1, 5), gang=gang((1, 3, 5)), limit=4)) == {1: 4}
    after = run([cell(1, 9)], shape(1, 3), shape(9, 1, job=9), gang=gang((1, 3, 3)), limit=3)
    assert placed(after) == {1: 3}
    assert after.complete is False


def test_a_pass_that_placed_less_than_its_limit_looked_at_everything() -> None:
    assert run([cell(1, 9)], shape(1, 3, job=1), limit=4).complete is True
    assert run([cell(1, 9)], shape(1, 3, job=1), limit=3).complete is False


def test_what_did_not_fit_is_not_looked_for_again_but_told_again() -> None:
    plan = run(
        [cell(1, 1)], shape(1, 1, job=1, cpu=2), shape(2, 1, job=2, cpu=2), shape(3, 1, job=3)
    )
    assert placed(plan) == {3: 1}
    assert reasons(plan)[1] == reasons(plan)[2]


def test_what_did_not_fit_takes_nothing_of_the_limit_and_adds_nothing_to_it() -> None:
    large = [shape(n, 1, job=n, cpu=5) for n in (1, 2)]
    assert placed(run([cell(1, 2)], *large, shape(3, 2, job=3), limit=1)) == {3: 1}


def test_a_gang_in_a_pool_without_a_cell_says_so() -> None:
    plan = run([], shape(1, 2), gang=gang((1, 2, 2)))
    assert placed(plan) == {}
    reason = reasons(plan)[1]
    assert (reason["need"], reason["have"]) == (2, 0)
    assert reason["text"].endswith("; the pool has no cell")


def test_a_misfit_is_of_one_request_one_type_and_one_cell_to_avoid() -> None:
    cells = [cell(1, 2), cell(2, 1)]
    plan = run(cells, shape(1, 1, job=1, cpu=2, avoid_cell_id=9), shape(2, 1, job=2, cpu=2))
    assert placed(plan) == {1: 1}
    aside = run([cell(1, 1), cell(2, 9)], shape(1, 9, job=1, avoid_cell_id=2), shape(2, 1, job=2))
    assert placed(aside) == {1: 1, 2: 1}


def test_an_avoided_cell_is_used_only_where_no_other_could_ever_take_it() -> None:
    assert placed(run([cell(1, 5), cell(2, 1)], shape(1, 3, job=1, avoid_cell_id=1))) == {1: 1}
    assert placed(run([cell(1, 5), cell(2, 1)], shape(1, 1, job=1, cpu=2, avoid_cell_id=1))) == {
        1: 1
    }


def test_a_resource_that_a_cell_does_not_have_is_none_of() -> None:
    odd = PendingShape(1, 1, Band.BATCH, 1, {"gpu": 1}, "container")
    plan = run([cell(1, 5)], odd)
    assert placed(plan) == {}
    assert reasons(plan)[1]["shortfall"] == {"gpu": 1}


def test_what_a_shape_does_not_ask_for_stays_as_it_is() -> None:
    both = replace(cell(1, 9), capacity={"cpu": 9, "gpu": 1})
    large = PendingShape(2, 2, Band.BATCH, 1, {"gpu": 2}, "container")
    small = PendingShape(3, 3, Band.BATCH, 2, {"gpu": 1}, "container")
    assert placed(run([both], shape(1, 3, job=1), large, small)) == {1: 3, 3: 1}
