"""Gangs and tasks that run at most once, as submitters draw them, and what they must come to.

A gang fits into the smallest cluster that a simulation has: two cells of one core.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from controlplane.contract.states import TaskState as S
from tests.simulation.jobs import Submitted, group_of, job_of, sleep

_SMALL = {"cpu": 0.25, "memory": "64Mi"}
_ENDLESS = ["sleep", "1000000"]
# A tenth of the smallest cell is left to what only others end (`families._endless`).
_PACKED_MILLIS = 900
_PIECE_MILLIS = (150, 300, 450, 900)

Kind = Callable[[Random, str], Submitted]


def _members(rng: Random, name: str, command: list[str], replicas: int, **more: Any) -> Any:
    return group_of(rng, name, command, replicas=replicas, resources=_SMALL, **more)


def _long(rng: Random) -> list[str]:
    """Long enough that some fault finds them all at work."""
    return [*sleep(rng, 5.0), "sleep", f"{rng.uniform(3.0, 40.0):.2f}"]


def _gang(name: str, groups: list[dict[str, Any]], expected: S, **more: Any) -> Submitted:
    body = job_of(name, groups, coscheduled=True, **more)
    return Submitted(0.0, body, frozenset({expected}))


def gang_succeeds(rng: Random, name: str) -> Submitted:
    """However often it has to begin anew."""
    group = _members(rng, "main", _long(rng), rng.randint(2, 6))
    return _gang(name, [group], S.SUCCEEDED)


def gang_of_groups(rng: Random, name: str) -> Submitted:
    """Its groups, and all of it, have minima below what they may have."""
    groups = []
    for number in range(rng.randint(2, 3)):
        group = _members(rng, f"group-{number}", _long(rng), rng.randint(1, 3))
        group["min_available"] = rng.randint(0, group["replicas"])
        groups.append(group)
    fewest = sum(group["min_available"] for group in groups)
    most = sum(group["replicas"] for group in groups)
    more = {"min_available": rng.randint(fewest, most)} if rng.random() < 0.6 else {}
    return _gang(name, groups, S.SUCCEEDED, **more)


def gang_of_sizes(rng: Random, name: str) -> Submitted:
    """Draw a gang whose members differ in size, and which packs into two cells of 0.9 core."""
    pieces: list[float] = []
    for _ in range(2):
        left = _PACKED_MILLIS
        while left >= min(_PIECE_MILLIS):
            pieces.append(rng.choice([piece for piece in _PIECE_MILLIS if piece <= left]))
            left -= int(pieces[-1])
    groups = []
    for millis in rng.sample(_PIECE_MILLIS, len(_PIECE_MILLIS)):
        if count := pieces.count(millis):
            resources = {"cpu": millis / 1000, "memory": "64Mi"}
            group = group_of(rng, f"of-{millis}", _long(rng), resources=resources)
            groups.append({**group, "replicas": count})
    return _gang(name, groups, S.SUCCEEDED)


def gang_retries(rng: Random, name: str) -> Submitted:
    """A member that fails ends all others, without a charge to their budgets."""
    failures = rng.randint(1, 2)
    first = _members(rng, "first", [*sleep(rng, 6.0), "fail-first", str(failures)], 1)
    others = _members(rng, "others", _long(rng), rng.randint(1, 4))
    if rng.random() < 0.5:
        # More of these than need be do not stand in for the first.
        others["min_available"] = rng.randint(0, others["replicas"])
    retries = {"failure": failures, "preemption": 100}
    return _gang(name, [first, others], S.SUCCEEDED, retries=retries)


def gang_vanishes(rng: Random, name: str) -> Submitted:
    """Its members are lost more often than they may be."""
    group = _members(rng, "main", [*sleep(rng, 5.0), "vanish"], rng.randint(2, 4))
    retries = {"preemption": rng.randint(0, 2)}
    return _gang(name, [group], S.WORKER_FAILED, retries=retries)


def gang_fails(rng: Random, name: str) -> Submitted:
    """One member fails for good: the others, which would never end, end with it."""
    first = _members(rng, "first", [*sleep(rng, 8.0), "exit", "3"], rng.randint(1, 2))
    others = _members(rng, "others", _ENDLESS, rng.randint(1, 4))
    if rng.random() < 0.5:
        return _gang(name, [first, others], S.FAILED, retries={"failure": rng.randint(0, 1)})
    # Tolerated as a failure, but not as a gap in the gang.
    return _gang(name, [first, others], S.WORKER_FAILED, max_task_failures=6)


def gang_with_a_deadline(rng: Random, name: str) -> Submitted:
    """It may be too large for the cluster."""
    group = group_of(rng, "main", sleep(rng, 12.0))
    group["replicas"] = rng.randint(3, 12)
    job = _gang(name, [group], S.SUCCEEDED, scheduling_timeout_seconds=rng.uniform(5.0, 60.0))
    job.expected |= {S.UNSCHEDULABLE}
    return job


def gang_at_most_once(rng: Random, name: str) -> Submitted:
    """Some members, or all, run at most once: what becomes of them is not known."""
    first = _members(rng, "first", sleep(rng, 12.0), rng.randint(1, 3))
    others = _members(rng, "others", sleep(rng, 12.0), rng.randint(1, 3))
    first["delivery"] = "at_most_once"
    if rng.random() < 0.5:
        others["delivery"] = "at_most_once"
    body = job_of(name, [first, others], coscheduled=True)
    return Submitted(0.0, body, in_peace=frozenset({S.SUCCEEDED}))


def once(rng: Random, name: str) -> Submitted:
    """At most once: it may end without success, and never begins twice."""
    group = group_of(rng, "main", sleep(rng, 15.0))
    group["replicas"] = rng.randint(2, 8)
    body = job_of(name, [group], delivery="at_most_once")
    job = Submitted(0.0, body, frozenset({S.SUCCEEDED, S.WORKER_FAILED, S.FAILED}))
    job.in_peace = frozenset({S.SUCCEEDED})
    return job


def once_and_fails(rng: Random, name: str) -> Submitted:
    """At most once, and it would not succeed."""
    end = rng.choice([["exit", "3"], ["vanish"], ["fail-system"]])
    group = group_of(rng, "main", [*sleep(rng, 8.0), *end], delivery="at_most_once")
    body = job_of(name, [group], retries={"system": rng.randint(0, 2)})
    return Submitted(0.0, body, frozenset({S.WORKER_FAILED, S.FAILED}))
