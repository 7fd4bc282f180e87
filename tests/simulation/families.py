"""Jobs that belong together: gangs, what runs once, chains, trees, and those of one name."""

from collections.abc import Callable
from random import Random

from controlplane.contract.states import TaskState as S
from tests.simulation import exclusives, gangs
from tests.simulation.identical import identical
from tests.simulation.jobs import (
    Submitted,
    by_minima,
    fails,
    group_of,
    in_order,
    job_of,
    sleep,
    spoil,
    succeeds,
    succeeds_at_last,
    vanishes,
)

_MEMBERS: tuple[gangs.Kind, ...] = (
    succeeds,
    succeeds,
    succeeds_at_last,
    fails,
    vanishes,
    in_order,
    gangs.gang_succeeds,
    gangs.gang_fails,
    gangs.once,
)

Family = Callable[[Random, str], list[Submitted]]


def choose_families(seed: int) -> tuple[Family, ...]:
    """The families of `seed`, known before it is simulated."""
    rng = Random(f"families of {seed}")
    return tuple(rng.choice(FAMILIES) for _ in range(rng.choice([0, 1, 1, 2])))


def draw_families(seed: int) -> list[Submitted]:
    """Their jobs. Each is submitted after those that it names."""
    rng = Random(f"jobs of the families of {seed}")
    drawn = []
    for number, family in enumerate(choose_families(seed)):
        begin = rng.choice([0.0, rng.uniform(0.0, 40.0)])
        jobs = family(rng, f"family-{number}")
        for job in jobs:
            job.at += begin
        if family is not same_name:
            spoil(rng, jobs)
        drawn += jobs
    return drawn


def gang(rng: Random, name: str) -> list[Submitted]:
    """One gang, or two that compete."""
    return [_draw(rng, _GANGS, f"{name}-{number}") for number in range(rng.randint(1, 2))]


def at_most_once(rng: Random, name: str) -> list[Submitted]:
    """What must not begin twice."""
    return [_draw(rng, _ONCE, f"{name}-{number}") for number in range(rng.randint(1, 2))]


def exclusive(rng: Random, name: str) -> list[Submitted]:
    """What must not run twice at the same time."""
    return [_draw(rng, _EXCLUSIVE, f"{name}-{number}") for number in range(rng.randint(1, 2))]


def chain(rng: Random, name: str) -> list[Submitted]:
    """Each waits for one or two before it."""
    jobs: list[Submitted] = []
    for number in range(rng.randint(2, 4)):
        job = _draw(rng, _MEMBERS, f"{name}-{number}")
        job.at = jobs[-1].at + rng.choice([0.0, rng.uniform(0.0, 20.0)]) if jobs else 0.0
        for other in rng.sample(jobs, min(len(jobs), rng.choice([1, 1, 2]))):
            until = rng.choice(["started", "succeeded", "succeeded", "finished"])
            job.waits.append((other, until))
        jobs.append(job)
    return jobs


def tree(rng: Random, name: str) -> list[Submitted]:
    """A parent, its child, the child's children: a job without success ends its descendants."""
    doomed = rng.random() < 0.6
    root = (fails if doomed else succeeds)(rng, f"{name}-0")
    if doomed and rng.random() < 0.5:
        root = _endless(rng, f"{name}-0")
        root.cancel_at = rng.uniform(5.0, 60.0)
    if doomed:
        _leave_room(root)
    jobs = [root]
    for number in range(1, rng.randint(3, 5)):
        # A job that depends on one that cannot succeed may never end.
        child_name = f"{name}-{number}"
        child = _endless(rng, child_name) if doomed else _draw(rng, _MEMBERS, child_name)
        child.parent = jobs[-1] if number < 3 else rng.choice(jobs)
        child.at = child.parent.at + rng.choice([0.0, rng.uniform(0.0, 10.0)])
        jobs.append(child)
    return sorted(jobs, key=lambda job: job.at)


def same_name(rng: Random, name: str) -> list[Submitted]:
    """Several of one name, the last of which ends all that are left and ends itself."""
    jobs: list[Submitted] = []
    for number in range(rng.randint(2, 4)):
        policy = rng.choice([None, "error", "keep", "replace", "replace"]) if jobs else None
        job = _endless(rng, name) if rng.random() < 0.5 else _draw(rng, _MEMBERS, name)
        job.at = jobs[-1].at + rng.uniform(0.0, 20.0) if jobs else 0.0
        if policy is not None:
            job.body["existing_job_policy"] = policy
        job.body["labels"] = {"number": str(number)}
        jobs.append(job)
    last = _draw(rng, _MEMBERS, name)
    last.at = jobs[-1].at + rng.uniform(0.0, 40.0)
    last.body["existing_job_policy"] = "replace"
    return [*jobs, last]


def retried(rng: Random, name: str) -> list[Submitted]:
    """One that is cancelled, perhaps, and what is left of it, once or twice."""
    job = _draw(rng, _RETRIED, f"{name}-0")
    expected, jobs = job.expected, [job]
    for number in range(1, rng.randint(2, 3)):
        rest = Submitted(0.0, {"name": f"{name}-{number}", "groups": []}, expected)
        rest.results, rest.retries = job.results, jobs[-1]
        jobs.append(rest)
    for job in jobs[:-1]:
        job.cancel_at = rng.uniform(1.0, 30.0)
        job.expected |= {S.KILLED}
        job.in_peace |= {S.KILLED} if job.in_peace else frozenset()
    return jobs


def _draw(rng: Random, kinds: tuple[gangs.Kind, ...], name: str) -> Submitted:
    return rng.choice(kinds)(rng, name)


def _leave_room(root: Submitted) -> None:
    """Let the root fit into the smallest cell beside its endless children: it must end them."""
    for group in root.body["groups"]:
        resources = group["resources"]
        resources["cpu"] = min(resources["cpu"], 0.5)


def _endless(rng: Random, name: str) -> Submitted:
    """Only other jobs end it, so it is small: they must fit beside it."""
    words = [*sleep(rng, 1.0), "sleep", "1000000"]
    small = {"cpu": 0.01, "memory": "6Mi"}
    group = group_of(rng, "main", words, replicas=rng.randint(1, 3), resources=small)
    return Submitted(0.0, job_of(name, [group]), frozenset({S.KILLED}))


_GANGS: tuple[gangs.Kind, ...] = (
    gangs.gang_succeeds,
    gangs.gang_of_groups,
    gangs.gang_of_groups,
    gangs.gang_of_sizes,
    gangs.gang_of_sizes,
    gangs.gang_retries,
    gangs.gang_vanishes,
    gangs.gang_fails,
    gangs.gang_with_a_deadline,
    gangs.gang_at_most_once,
)
_RETRIED: tuple[gangs.Kind, ...] = (
    succeeds,
    succeeds_at_last,
    fails,
    in_order,
    by_minima,
    gangs.gang_succeeds,
    gangs.gang_of_groups,
    gangs.gang_of_sizes,
    gangs.once,
)
_ONCE: tuple[gangs.Kind, ...] = (gangs.once, gangs.once, gangs.once_and_fails)

_EXCLUSIVE: tuple[gangs.Kind, ...] = (
    exclusives.exclusive,
    exclusives.exclusive,
    exclusives.exclusive_for_long,
    exclusives.exclusive_for_long,
    exclusives.exclusive_and_retried,
    exclusives.exclusive_once,
    exclusives.exclusive_strictly,
)

FAMILIES: tuple[Family, ...] = (
    *(gang, gang, gang),
    *(exclusive, exclusive),
    at_most_once,
    *(chain, chain),
    tree,
    same_name,
    retried,
    *(identical, identical),
)
