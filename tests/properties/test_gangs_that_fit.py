"""A gang that fits starts: placement against brute force, and against first-fit decreasing.

Brute force is written from the rule alone: a gang starts if its members can be assigned to cells so
that no cell holds more than it has, each member is on a cell that its constraints allow, and enough
members of each group and of the whole job have a place.
"""

from dataclasses import dataclass
from itertools import product

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from controlplane.domain.constraints import Constraint, Operator
from controlplane.domain.placement.model.policy import PoolPolicy
from tests.harness.drawn import examples
from tests.unit.domain.placement import pools
from tests.unit.domain.placement.pools import Outcome

MANY = settings(max_examples=examples(400), deadline=None)
ZONES = ("a", "b")


@dataclass(frozen=True)
class Machine:
    cpu: int
    gpu: int
    zone: str
    slots: int | None = None


@dataclass(frozen=True)
class Group:
    replicas: int
    minimum: int
    cpu: int
    gpu: int = 0
    zone: str | None = None


@st.composite
def machines(draw: st.DrawFn, most: int, cpu: int) -> list[Machine]:
    one = st.builds(
        Machine,
        st.integers(0, cpu),
        st.integers(0, 2),
        st.sampled_from(ZONES),
        st.sampled_from([None, None, 0, 1, 2]),
    )
    return draw(st.lists(one, min_size=1, max_size=most))


@st.composite
def gangs(draw: st.DrawFn, members: int, cpu: int) -> list[Group]:
    found: list[Group] = []
    while members:
        replicas = draw(st.integers(1, members))
        members -= replicas
        minimum = draw(st.one_of(st.just(replicas), st.integers(0, replicas)))
        requested = draw(st.integers(1, cpu)), draw(st.sampled_from([0, 0, 1, 2]))
        zone = draw(st.sampled_from([None, None, *ZONES]))
        found.append(Group(replicas, minimum, *requested, zone))
    return found


def fits_somehow(cells: list[Machine], groups: list[Group], least: int) -> bool:
    """Whether any split of the members, on any cells, meets all minima."""
    splits = product(*(range(group.minimum, group.replicas + 1) for group in groups))
    return any(_assignable(cells, groups, split) for split in splits if sum(split) == least)


def _assignable(cells: list[Machine], groups: list[Group], split: tuple[int, ...]) -> bool:
    members = [group for group, count in zip(groups, split, strict=True) for _ in range(count)]
    seen: set[tuple[int, tuple[tuple[int, int], ...]]] = set()

    def place(number: int, free: tuple[tuple[int, int], ...]) -> bool:
        if number == len(members):
            return True
        if (number, free) in seen:
            return False
        seen.add((number, free))
        member = members[number]
        for at, (cell, (cpu, gpu)) in enumerate(zip(cells, free, strict=True)):
            if member.zone in (None, cell.zone) and member.cpu <= cpu and member.gpu <= gpu:
                left = (cpu - member.cpu, gpu - member.gpu)
                if place(number + 1, (*free[:at], left, *free[at + 1 :])):
                    return True
        return False

    return place(0, tuple((cell.cpu, cell.gpu) for cell in cells))


def run(cells: list[Machine], groups: list[Group], least: int, selector: str) -> Outcome:
    facts = [
        pools.cell(
            number,
            capacity={"cpu": cell.cpu, "gpu": cell.gpu},
            labels={"zone": cell.zone},
            start_slots=cell.slots,
        )
        for number, cell in enumerate(cells, 1)
    ]
    rows = [
        pools.row(
            number,
            group.replicas,
            job=1,
            coscheduled=True,
            resources={"cpu": group.cpu, "gpu": group.gpu},
            constraints=(Constraint("zone", Operator.EQ, (group.zone,)),) if group.zone else (),
        )
        for number, group in enumerate(groups, 1)
    ]
    members = [(number, group.minimum, group.replicas) for number, group in enumerate(groups, 1)]
    gang = pools.gang(*members, least=least)
    return pools.run(facts, *rows, gangs={1: gang}, policy=PoolPolicy(selector=selector))


def check(outcome: Outcome, cells: list[Machine], groups: list[Group], least: int) -> None:
    """What is placed is enough, and fits."""
    placed = outcome.placed
    assert sum(placed.values()) >= least
    used = dict.fromkeys(range(1, len(cells) + 1), (0, 0))
    for number, group in enumerate(groups, 1):
        assert placed.get(number, 0) >= group.minimum
        for cell_id, count in outcome.where(number).items():
            assert group.zone in (None, cells[cell_id - 1].zone)
            cpu, gpu = used[cell_id]
            used[cell_id] = (cpu + group.cpu * count, gpu + group.gpu * count)
    for cell_id, (cpu, gpu) in used.items():
        assert cpu <= cells[cell_id - 1].cpu
        assert gpu <= cells[cell_id - 1].gpu


selectors = st.sampled_from(["dispersed", "concentrated", "round_robin"])


@MANY
@given(machines(most=4, cpu=6), gangs(members=8, cpu=4), st.data(), selectors)
def test_gang_starts_iff_some_assignment_meets_all_minima(
    cells: list[Machine], groups: list[Group], data: st.DataObject, selector: str
) -> None:
    fewest = sum(group.minimum for group in groups)
    least = data.draw(st.integers(fewest, sum(group.replicas for group in groups)))
    assume(least)
    outcome = run(cells, groups, least, selector)
    assert bool(outcome.placed) == fits_somehow(cells, groups, least)
    if outcome.placed:
        check(outcome, cells, groups, least)


@MANY
@given(machines(most=4, cpu=6), gangs(members=8, cpu=4), st.randoms(), selectors)
def test_the_order_of_groups_does_not_decide_whether_a_gang_starts(
    cells: list[Machine], groups: list[Group], rng: object, selector: str
) -> None:
    least = sum(group.minimum for group in groups)
    assume(least)
    shuffled = list(groups)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    first = run(cells, groups, least, selector)
    second = run(cells, shuffled, least, selector)
    assert bool(first.placed) == bool(second.placed)


def first_fit_decreasing(cells: list[Machine], groups: list[Group]) -> bool:
    """Place member by member, the largest first, each on the first cell with room for it."""
    free = [[cell.cpu, cell.gpu] for cell in cells]
    most = max(cell.cpu for cell in cells) or 1, max(cell.gpu for cell in cells) or 1
    members = [group for group in groups for _ in range(group.minimum)]
    members.sort(key=lambda one: max(one.cpu / most[0], one.gpu / most[1]), reverse=True)
    for member in members:
        for cell, left in zip(cells, free, strict=True):
            if member.zone in (None, cell.zone) and member.cpu <= left[0] and member.gpu <= left[1]:
                left[0] -= member.cpu
                left[1] -= member.gpu
                break
        else:
            return False
    return True


@settings(max_examples=examples(150), deadline=None)
@given(machines(most=40, cpu=32), gangs(members=120, cpu=16), selectors)
def test_a_large_gang_starts_whenever_first_fit_decreasing_places_it(
    cells: list[Machine], groups: list[Group], selector: str
) -> None:
    least = sum(group.minimum for group in groups)
    assume(least)
    outcome = run(cells, groups, least, selector)
    if outcome.placed:
        check(outcome, cells, groups, least)
    else:
        assert not first_fit_decreasing(cells, groups)
