"""Room for gangs: victims leave only for a gang that then starts, and whenever that helps it.

The brute force of `test_gangs_that_fit` decides whether a gang fits.
"""

from dataclasses import dataclass, replace
from datetime import timedelta
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.domain.constraints import Constraint, Operator
from controlplane.domain.placement.model.policy import PoolPolicy
from controlplane.domain.placement.model.snapshot import EvictableAttempt
from controlplane.domain.placement.preemption.make_room import make_room, reserve, starving
from controlplane.domain.placement.preemption.preempt import Eviction
from controlplane.domain.state.states import Band
from tests.harness.domain.facts import NOW
from tests.harness.drawn import examples
from tests.properties.test_gangs_that_fit import Group, Machine, fits_somehow
from tests.unit.domain.placement import pools
from tests.unit.domain.placement.pools import Pool, Row

GANG = 1
LONG_AGO = NOW - timedelta(seconds=301)


@dataclass
class Crowd:
    """Cells with running tasks, and a gang that waits."""

    machines: list[Machine]
    groups: list[Group]
    least: int
    running: list[EvictableAttempt]
    band: Band = Band.PRODUCTION
    selector: str = "dispersed"

    def free_without(self, gone: list[EvictableAttempt]) -> list[Machine]:
        """What each cell has left once `gone` are gone."""
        left = []
        for number, machine in enumerate(self.machines, 1):
            here = [one for one in self.running if one.cell_id == number and one not in gone]
            cpu = sum(one.resources["cpu"] for one in here)
            gpu = sum(one.resources["gpu"] for one in here)
            left.append(replace(machine, cpu=machine.cpu - cpu, gpu=machine.gpu - gpu))
        return left

    def fits_without(self, gone: list[EvictableAttempt]) -> bool:
        return fits_somehow(self.free_without(gone), self.groups, self.least)

    def units(self) -> list[list[EvictableAttempt]]:
        """What may be evicted for the gang: single tasks, and other gangs whole."""
        found: dict[object, list[EvictableAttempt]] = {}
        for one in self.running:
            found.setdefault(one.gang or ("task", one.task_id), []).append(one)
        return [unit for unit in found.values() if all(one.band > self.band for one in unit)]

    def pool(
        self,
        gone: list[EvictableAttempt],
        kept: dict[int, list[tuple[int, int]]],
        *others: Row,
        slots: list[int | None] | None = None,
    ) -> Pool:
        """The pool without `gone`, with places `kept` for members of a group."""
        cells = [
            pools.cell(
                number,
                capacity={"cpu": machine.cpu, "gpu": machine.gpu},
                used={"cpu": machine.cpu - left.cpu, "gpu": machine.gpu - left.gpu},
                labels={"zone": machine.zone},
                start_slots=slots[number - 1] if slots else machine.slots,
            )
            for number, (machine, left) in enumerate(
                zip(self.machines, self.free_without(gone), strict=True), 1
            )
        ]
        rows = []
        for number, group in enumerate(self.groups, 1):
            terms = {
                "job": GANG,
                "band": self.band,
                "coscheduled": True,
                "resources": {"cpu": group.cpu, "gpu": group.gpu},
                "constraints": (Constraint("zone", Operator.EQ, (group.zone,)),)
                if group.zone
                else (),
                "since": LONG_AGO,
            }
            places = kept.get(number, [])
            rest = group.replicas - sum(count for _, count in places)
            rows += [
                pools.row(number, count, nominated_cell_id=cell, **terms) for cell, count in places
            ]
            rows += [pools.row(number, rest, **terms)] if rest else []
        members = [(number, one.minimum, one.replicas) for number, one in enumerate(self.groups, 1)]
        gang = pools.gang(*members, least=self.least)
        policy = PoolPolicy(selector=self.selector)
        return pools.pool(cells, *rows, *others, gangs={GANG: gang}, policy=policy)


def crowd(random: Random) -> Crowd:
    """Return full or nearly full cells, so that a gang seldom fits before a task ends."""
    machines = [
        Machine(random.randint(2, 6), random.choice([0, 1, 2]), random.choice("ab"))
        for _ in range(random.randint(1, 4))
    ]
    running: list[EvictableAttempt] = []
    bands = {8: Band.BATCH, 9: random.choice([Band.BATCH, Band.INTERACTIVE, Band.PRODUCTION])}
    for number, machine in enumerate(machines, 1):
        cpu, gpu = machine.cpu, machine.gpu
        while cpu and random.random() < 0.9:
            requested = random.randint(1, cpu), random.randint(0, min(gpu, 1))
            cpu, gpu = cpu - requested[0], gpu - requested[1]
            gang = random.choice([None, None, None, *bands])
            task = len(running) + 1
            single = random.choice([Band.BATCH, Band.BATCH, Band.INTERACTIVE, Band.PRODUCTION])
            running.append(
                EvictableAttempt(
                    task_id=task,
                    job_id=100 + (gang or 10 + task),
                    group_id=100 + task,
                    cell_id=number,
                    band=bands[gang] if gang else single,
                    resources={"cpu": requested[0], "gpu": requested[1]},
                    owner_id=2,
                    project_id=2,
                    domain_id=1,
                    began_at=NOW - timedelta(seconds=random.randint(0, 60)),
                    stop_seconds=10.0,
                    gang=gang,
                )
            )
    groups = []
    for _ in range(random.randint(1, 3)):
        replicas = random.randint(1, 3)
        minimum = random.choice([0, replicas, random.randint(0, replicas)])
        requested = random.randint(1, 3), random.choice([0, 0, 0, 1])
        groups.append(Group(replicas, minimum, *requested, random.choice([None, None, "a", "b"])))
    fewest = max(sum(group.minimum for group in groups), 1)
    least = random.randint(fewest, max(sum(group.replicas for group in groups), fewest))
    selector = random.choice(["dispersed", "concentrated", "round_robin"])
    band = random.choice([Band.PRODUCTION, Band.INTERACTIVE])
    return Crowd(machines, groups, least, running, band, selector)


def kept_by(places: list[tuple[int, int, int]]) -> dict[int, list[tuple[int, int]]]:
    kept: dict[int, list[tuple[int, int]]] = {}
    for group, cell, count in places:
        kept.setdefault(group, []).append((cell, count))
    return kept


def rivals(band: Band) -> list[Row]:
    """More than enough small tasks of the same band, which came earlier, and of a lower one."""
    return [
        pools.row(200, 40, job=0, band=band, resources={"cpu": 1, "gpu": 0}),
        pools.row(201, 40, job=0, band=Band.BATCH, resources={"cpu": 1, "gpu": 1}),
    ]


def members_in(pool: Pool) -> int:
    lines = pool.place().placements
    columns = zip(lines.group_ids, lines.counts, strict=True)
    return sum(count for group, count in columns if group < 200)


@settings(max_examples=examples(500), deadline=None)
@given(st.integers(0, 2**32))
def test_victims_are_evicted_for_a_gang_iff_it_then_starts(seed: int) -> None:
    random = Random(seed)
    case = crowd(random)
    pool = case.pool([], {})
    plan = pool.place()
    if plan.placements.counts:
        return
    found: list[Eviction] = make_room(pool.snapshot, plan, pool.facts.waiting, case.running, (), {})
    units = case.units()
    assert bool(found) == case.fits_without([one for unit in units for one in unit])
    if not found:
        return
    [eviction] = found
    gone = [one for one in case.running if one.task_id in eviction.victims]
    taken = [unit for unit in units if unit[0] in gone]
    assert sorted(one.task_id for unit in taken for one in unit) == list(eviction.victims)
    for unit in taken:
        assert not case.fits_without([one for one in gone if one not in unit]), "it could stay"
    slots = [random.choice([None, 0, 1, 8]) for _ in case.machines]
    after = case.pool(gone, kept_by([*eviction.places()]), *rivals(case.band), slots=slots)
    assert members_in(after) >= case.least


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 2**32))
def test_starving_gang_that_fits_on_empty_cells_starts_once_they_are_free(seed: int) -> None:
    """No task is evicted: all are of its band or above. Small tasks follow what ends."""
    case = crowd(Random(seed))
    case.running = [replace(one, band=Band.PRODUCTION, gang=None) for one in case.running]
    pool = case.pool([], {})
    plan = pool.place()
    if plan.placements.counts:
        return
    starved = starving(pool.snapshot, plan, pool.facts.waiting)
    found = reserve(pool.snapshot, plan, pool.facts.waiting, starved, case.running, ())
    assert bool(found) == case.fits_without(case.running)
    if found:
        kept = kept_by([(one.group_id, one.cell_id, one.count) for one in found])
        after = case.pool(case.running, kept, *rivals(case.band))
        assert members_in(after) >= case.least
