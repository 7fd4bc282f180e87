"""What submitters do in a simulation: jobs of every kind, and what each must come to."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from controlplane.contract.states import TaskState as S


@dataclass(slots=True)
class Submitted:
    """A job as submitted. `expected`: the states it may end in; empty: any."""

    at: float
    body: dict[str, Any]
    expected: frozenset[S] = frozenset()
    results: dict[str, str] = field(default_factory=dict)
    cancel_at: float | None = None
    job_id: int | None = None


def draw_jobs(rng: Random) -> list[Submitted]:
    """One to five jobs, submitted over a while; now and then one is cancelled."""
    drawn = []
    for number in range(rng.randint(1, 5)):
        draw = rng.choice(_KINDS)
        job = draw(rng, f"job-{number}")
        job.at = rng.choice([0.0, rng.uniform(0.0, 50.0)])
        if job.cancel_at is not None:
            job.cancel_at += job.at
        elif rng.random() < 0.15:
            job.cancel_at = job.at + rng.uniform(0.0, 60.0)
            job.expected |= {S.KILLED} if job.expected else frozenset()
        drawn.append(job)
    return drawn


def _group(rng: Random, name: str, command: list[str], **more: Any) -> dict[str, Any]:
    grace = rng.choice([0.0, 2.0, 10.0])
    return {
        "name": name,
        "replicas": rng.randint(1, 5),
        "image": "simulated:1",
        "command": command,
        "resources": {"cpu": rng.choice([0.25, 0.5, 1.0]), "memory": "64Mi"},
        "stop_grace_seconds": grace,
        **more,
    }


def _sleep(rng: Random, longest: float = 25.0) -> list[str]:
    words = []
    if rng.random() < 0.3:
        words += ["build", f"{rng.uniform(0.1, 8.0):.2f}"]
    if rng.random() < 0.2:
        words += ["deaf"]
    return [*words, "sleep", f"{rng.choice([0.0, rng.uniform(0.1, longest)]):.2f}"]


def _job(name: str, groups: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {"name": name, "groups": groups, "allow_unsatisfiable": True, **more}


def _succeeds(rng: Random, name: str) -> Submitted:
    text = f"result of {name}"
    group = _group(rng, "main", [*_sleep(rng), "result", text])
    body = _job(name, [group], band=rng.choice(["production", "interactive", "batch"]))
    return Submitted(0.0, body, frozenset({S.SUCCEEDED}), {"main": text})


def _succeeds_at_last(rng: Random, name: str) -> Submitted:
    failures = rng.randint(1, 2)
    group = _group(rng, "main", [*_sleep(rng, 8.0), "fail-first", str(failures)])
    body = _job(name, [group], retries={"failure": failures})
    return Submitted(0.0, body, frozenset({S.SUCCEEDED}))


def _fails(rng: Random, name: str) -> Submitted:
    end = rng.choice([["exit", "3"], ["oom"]])
    group = _group(rng, "main", [*_sleep(rng, 8.0), *end])
    body = _job(name, [group], retries={"failure": rng.randint(0, 1)})
    return Submitted(0.0, body, frozenset({S.FAILED}))


def _fails_in_the_system(rng: Random, name: str) -> Submitted:
    group = _group(rng, "main", ["fail-system"])
    body = _job(name, [group], retries={"system": rng.randint(0, 1)})
    return Submitted(0.0, body, frozenset({S.FAILED}))


def _vanishes(rng: Random, name: str) -> Submitted:
    group = _group(rng, "main", [*_sleep(rng, 5.0), "vanish"])
    body = _job(name, [group], retries={"preemption": rng.randint(0, 2)})
    return Submitted(0.0, body, frozenset({S.WORKER_FAILED}))


def _overruns(rng: Random, name: str) -> Submitted:
    words = ["deaf"] if rng.random() < 0.3 else []
    group = _group(rng, "main", [*words, "sleep", "90"], timeout_seconds=rng.uniform(1.0, 10.0))
    return Submitted(0.0, _job(name, [group]), frozenset({S.KILLED}))


def _endless(rng: Random, name: str) -> Submitted:
    """Only a stop that arrives ends it."""
    words = ["deaf"] if rng.random() < 0.3 else []
    group = _group(rng, "main", [*words, "sleep", "1000000"])
    cancel_at = rng.uniform(1.0, 80.0)
    return Submitted(0.0, _job(name, [group]), frozenset({S.KILLED}), cancel_at=cancel_at)


def _in_order(rng: Random, name: str) -> Submitted:
    until = rng.choice(["started", "succeeded", "finished"])
    first = _group(rng, "first", [*_sleep(rng, 10.0), "result", "one"])
    second = _group(
        rng, "second", _sleep(rng, 10.0), depends_on=[{"group": "first", "until": until}]
    )
    third = _group(rng, "third", _sleep(rng, 5.0), depends_on=[{"group": "second"}])
    groups = [first, second, third][: rng.randint(2, 3)]
    return Submitted(0.0, _job(name, groups), frozenset({S.SUCCEEDED}), {"first": "one"})


def _out_of_order(rng: Random, name: str) -> Submitted:
    """The first group fails: the second can never start."""
    first = _group(rng, "first", [*_sleep(rng, 5.0), "exit", "1"])
    second = _group(rng, "second", _sleep(rng), depends_on=[{"group": "first"}])
    tolerated = first["replicas"] if rng.random() < 0.5 else 0
    body = _job(name, [first, second], max_task_failures=tolerated)
    return Submitted(0.0, body, frozenset({S.FAILED}))


def _with_minima(rng: Random, name: str) -> Submitted:
    good = _group(rng, "good", _sleep(rng, 10.0))
    bad = _group(rng, "bad", [*_sleep(rng, 10.0), "exit", "1"], min_available=0)
    good["min_available"] = rng.randint(0, good["replicas"])
    return Submitted(0.0, _job(name, [good, bad]), frozenset({S.SUCCEEDED}))


def _with_a_deadline(rng: Random, name: str) -> Submitted:
    group = _group(rng, "main", _sleep(rng))
    group["replicas"] = rng.randint(4, 12)
    body = _job(name, [group], scheduling_timeout_seconds=rng.uniform(5.0, 60.0))
    return Submitted(0.0, body, frozenset({S.SUCCEEDED, S.UNSCHEDULABLE}))


def _many(rng: Random, name: str) -> Submitted:
    group = _group(rng, "main", _sleep(rng, 12.0))
    group["replicas"] = rng.randint(8, 24)
    return Submitted(0.0, _job(name, [group]), frozenset({S.SUCCEEDED}))


_KINDS: tuple[Callable[[Random, str], Submitted], ...] = (
    _succeeds,
    _succeeds,
    _succeeds_at_last,
    _fails,
    _fails_in_the_system,
    _vanishes,
    _overruns,
    _endless,
    _in_order,
    _in_order,
    _out_of_order,
    _with_minima,
    _with_a_deadline,
    _many,
)
