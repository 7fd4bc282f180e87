"""Jobs that contend: for room, quotas, tokens and labels, in bands and in more than one pool.

Each fits the smallest world that contends: in each pool a cell of one core in zone a that has
everything, or better ones.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from controlplane.contract.states import TaskState as S
from tests.simulation.jobs import Submitted, group_of, job_of, sleep, spoil
from tests.simulation.policies import CONTENDER, FPGA, SECOND, TOKEN, ZONE

_SMALL = {"cpu": 0.25, "memory": "64Mi"}
_LARGE = {"cpu": 1.0, "memory": "64Mi"}
_LESS_IMPORTANT = ("batch", "batch", "interactive")

Contest = Callable[[Random, str], list[Submitted]]


def choose_contests(seed: int) -> tuple[Contest, ...]:
    """The contests of `seed`, known before it is simulated; of two seeds in three: none."""
    rng = Random(f"contests of {seed}")
    if rng.random() > 0.35:
        return ()
    return tuple(rng.sample(CONTESTS, rng.choice([1, 2])))


def draw_contests(seed: int) -> list[Submitted]:
    """Their jobs."""
    rng = Random(f"jobs of the contests of {seed}")
    drawn = []
    for number, contest in enumerate(choose_contests(seed)):
        begin = rng.choice([0.0, rng.uniform(0.0, 20.0)])
        jobs = contest(rng, f"contest-{number}")
        pool = rng.choice(["default", "default", SECOND])
        for job in jobs:
            job.at += begin
            job.body["pool"] = pool
            job.owner = rng.choice([job.owner, CONTENDER])
        spoil(rng, jobs)
        drawn += jobs
    return drawn


def _job(name: str, groups: list[dict[str, Any]], **more: Any) -> Submitted:
    return Submitted(0.0, job_of(name, groups, **more), frozenset({S.SUCCEEDED}))


def _runs(rng: Random, shortest: float, longest: float) -> list[str]:
    words = ["deaf"] if rng.random() < 0.3 else []
    return [*words, "sleep", f"{rng.uniform(shortest, longest):.2f}"]


def bands(rng: Random, name: str) -> list[Submitted]:
    """What fills the pool, and more important work after it."""
    jobs = []
    for number in range(rng.randint(1, 3)):
        resources = {"cpu": rng.choice([0.25, 0.5]), "memory": "64Mi"}
        filler = group_of(rng, "main", _runs(rng, 10.0, 40.0), resources=resources)
        filler["replicas"] = rng.randint(3, 10)
        band = rng.choice(_LESS_IMPORTANT)
        jobs.append(_job(f"{name}-filler-{number}", [filler], band=band))
    for number in range(rng.randint(1, 3)):
        urgent = group_of(rng, "main", _runs(rng, 0.5, 6.0))
        urgent["replicas"] = rng.randint(1, 3)
        band = rng.choice(["production", "production", "interactive"])
        jobs.append(_job(f"{name}-urgent-{number}", [urgent], band=band))
        jobs[-1].at = rng.uniform(5.0, 40.0)
    return jobs


def bands_of_gangs(rng: Random, name: str) -> list[Submitted]:
    """Gangs that go whole, and gangs for which room is made at once."""
    jobs = []
    for number in range(rng.randint(1, 3)):
        members = group_of(rng, "main", _runs(rng, 10.0, 40.0), resources=_SMALL)
        members["replicas"] = rng.randint(2, 4)
        members["min_available"] = rng.randint(1, members["replicas"])
        is_gang = rng.random() < 0.7
        band = rng.choice(_LESS_IMPORTANT)
        jobs.append(_job(f"{name}-low-{number}", [members], band=band, coscheduled=is_gang))
    for number in range(rng.randint(1, 2)):
        members = group_of(rng, "main", _runs(rng, 0.5, 10.0), resources=_SMALL)
        members["replicas"] = rng.randint(2, 4)
        jobs.append(_job(f"{name}-high-{number}", [members], band="production", coscheduled=True))
        jobs[-1].at = rng.uniform(5.0, 40.0)
    return jobs


def tokens(rng: Random, name: str) -> list[Submitted]:
    """Whatever room there is, the pool has only so many tokens."""
    jobs = []
    for number in range(rng.randint(2, 4)):
        resources = {**_SMALL, TOKEN: rng.randint(1, 2)}
        group = group_of(rng, "main", sleep(rng, 15.0), resources=resources)
        band = rng.choice(["production", "interactive", "batch"])
        jobs.append(_job(f"{name}-{number}", [group], band=band))
        jobs[-1].at = rng.choice([0.0, rng.uniform(0.0, 30.0)])
    return jobs


def named(rng: Random, name: str) -> list[Submitted]:
    """A resource that few cells have, and labels that some have."""
    jobs = []
    for number in range(rng.randint(2, 4)):
        is_rare = rng.random() < 0.6
        resources = {**_SMALL, FPGA: 1} if is_rare else _SMALL
        group = group_of(rng, "main", sleep(rng, 12.0), resources=resources)
        if rng.random() < 0.6:
            constraint = {"key": ZONE, "op": "eq", "values": ["a"], "required": rng.random() < 0.7}
            group["constraints"] = [constraint]
        jobs.append(_job(f"{name}-{number}", [group]))
        jobs[-1].at = rng.choice([0.0, rng.uniform(0.0, 30.0)])
    return jobs


def grouped(rng: Random, name: str) -> list[Submitted]:
    """Gangs all of whose members go to cells of one zone."""
    jobs = []
    for number in range(rng.randint(1, 3)):
        members = group_of(rng, "main", _runs(rng, 3.0, 20.0), resources=_SMALL)
        members["replicas"] = rng.randint(2, 4)
        members["min_available"] = rng.randint(1, members["replicas"])
        more = {"band": rng.choice(["production", "interactive", "batch"]), "group_by": ZONE}
        jobs.append(_job(f"{name}-{number}", [members], coscheduled=True, **more))
        jobs[-1].at = rng.choice([0.0, rng.uniform(0.0, 30.0)])
    return jobs


def gangs_of_zones(rng: Random, name: str) -> list[Submitted]:
    """Draw gangs of which one group is bound to a zone, and another one is larger or smaller."""
    jobs = []
    for number in range(rng.randint(1, 2)):
        bound = group_of(rng, "bound", _runs(rng, 3.0, 20.0), resources=_SMALL, replicas=1)
        bound["constraints"] = [{"key": ZONE, "op": "eq", "values": ["a"], "required": True}]
        resources = {"cpu": rng.choice([0.25, 0.5]), "memory": "64Mi"}
        free = group_of(rng, "free", _runs(rng, 3.0, 20.0), resources=resources, replicas=1)
        groups = [bound, free] if rng.random() < 0.5 else [free, bound]
        band = rng.choice(["production", "interactive", "batch"])
        jobs.append(_job(f"{name}-{number}", groups, coscheduled=True, band=band))
        jobs[-1].at = rng.choice([0.0, rng.uniform(0.0, 30.0)])
    return jobs


def crowding_out(rng: Random, name: str) -> list[Submitted]:
    """Small ones come without end, it seems; a large one of the same band waits among them."""
    jobs = []
    for number in range(rng.randint(3, 6)):
        group = group_of(rng, "main", _runs(rng, 5.0, 15.0), resources=_SMALL)
        group["replicas"] = rng.randint(3, 8)
        jobs.append(_job(f"{name}-small-{number}", [group]))
        jobs[-1].at = 8.0 * number
    large = group_of(rng, "main", _runs(rng, 1.0, 5.0), replicas=1, resources=_LARGE)
    jobs.append(_job(f"{name}-large", [large]))
    jobs[-1].at = rng.uniform(1.0, 10.0)
    return jobs


CONTESTS: tuple[Contest, ...] = (
    bands,
    bands_of_gangs,
    tokens,
    named,
    grouped,
    gangs_of_zones,
    crowding_out,
)
