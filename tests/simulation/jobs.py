"""What submitters do in a simulation: jobs of every kind, and what each must come to."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from random import Random
from typing import Any

from controlplane.contract.states import TaskState as S


@dataclass(frozen=True, slots=True)
class End:
    """How a job ended."""

    state: S
    reason: str
    was_started: bool
    settled_at: datetime | None


@dataclass(slots=True, eq=False)
class Submitted:
    """A job as submitted. `expected`: the states it may end in; empty: any.

    `in_peace`: those it may end in if nothing happens to cells.
    `waits`: the jobs it depends on, until when; `retries`: the one whose rest it is; `replaces`:
    those that it took the name from.
    """

    at: float
    body: dict[str, Any]
    expected: frozenset[S] = frozenset()
    in_peace: frozenset[S] = frozenset()
    results: dict[str, str] = field(default_factory=dict)
    cancel_at: float | None = None
    delete_at: float | None = None
    waits: list[tuple["Submitted", str]] = field(default_factory=list)
    parent: "Submitted | None" = None
    retries: "Submitted | None" = None
    owner: str = "submitter"
    # What became of it. `seen`: its state at the last read; `end`: that before its deletion.
    key: str = ""
    links: dict[str, Any] = field(default_factory=dict)
    job_id: int | None = None
    refused: str = ""
    is_kept: bool = False
    is_replaced: bool = False
    replaces: list["Submitted"] = field(default_factory=list)
    seen: End | None = None
    end: End | None = None

    @property
    def is_open(self) -> bool:
        """Return whether no answer has come yet."""
        return self.job_id is None and not self.refused

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.body["name"])

    def replicas(self, group: str | None = None) -> int:
        """Tasks of it, or of one group."""
        return sum(g["replicas"] for g in self.body["groups"] if group in (None, g["name"]))

    def minimum(self, group: str | None = None) -> int:
        """So many successes it, or one group, takes to succeed, at the least."""
        groups = [g for g in self.body["groups"] if group in (None, g["name"])]
        minimum = sum(g.get("min_available", g["replicas"]) for g in groups)
        if group is not None:
            return minimum
        if "min_available" in self.body or any("min_available" in g for g in groups):
            return int(self.body.get("min_available", minimum))
        return max(self.replicas() - self.body.get("max_task_failures", 0), 1)


def draw_jobs(rng: Random) -> list[Submitted]:
    """One to four jobs that know nothing of each other, submitted over a while."""
    drawn = []
    for number in range(rng.randint(1, 4)):
        draw = rng.choice(_KINDS)
        job = draw(rng, f"job-{number}")
        job.at = rng.choice([0.0, rng.uniform(0.0, 50.0)])
        drawn.append(job)
    spoil(rng, drawn)
    return drawn


def spoil(rng: Random, jobs: Iterable[Submitted]) -> None:
    """Now and then one is cancelled, or deleted when it has ended. `cancel_at` becomes absolute."""
    for job in jobs:
        if job.cancel_at is not None:
            job.cancel_at += job.at
        elif rng.random() < 0.15:
            job.cancel_at = job.at + rng.uniform(0.0, 60.0)
            job.expected |= {S.KILLED} if job.expected else frozenset()
            job.in_peace |= {S.KILLED} if job.in_peace else frozenset()
        if job.cancel_at is not None and rng.random() < 0.4:
            # While its containers are still being stopped.
            job.delete_at = job.cancel_at + rng.uniform(0.1, 5.0)
        elif rng.random() < 0.15:
            job.delete_at = job.at + rng.uniform(1.0, 120.0)


def group_of(rng: Random, name: str, command: list[str], **more: Any) -> dict[str, Any]:
    """A group of one to five tasks."""
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


def sleep(rng: Random, longest: float = 25.0) -> list[str]:
    """The words that last up to `longest` seconds, more or less."""
    words = []
    if rng.random() < 0.3:
        words += ["build", f"{rng.uniform(0.1, 8.0):.2f}"]
    if rng.random() < 0.2:
        words += ["deaf"]
    return [*words, "sleep", f"{rng.choice([0.0, rng.uniform(0.1, longest)]):.2f}"]


def job_of(name: str, groups: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """The body of a job."""
    return {"name": name, "groups": groups, "allow_unsatisfiable": True, **more}


def succeeds(rng: Random, name: str) -> Submitted:
    """It leaves a result."""
    text = f"result of {name}"
    group = group_of(rng, "main", [*sleep(rng), "result", text])
    body = job_of(name, [group], band=rng.choice(["production", "interactive", "batch"]))
    return Submitted(0.0, body, frozenset({S.SUCCEEDED}), results={"main": text})


def succeeds_at_last(rng: Random, name: str) -> Submitted:
    """Its first attempts fail, as often as they may."""
    failures = rng.randint(1, 2)
    group = group_of(rng, "main", [*sleep(rng, 8.0), "fail-first", str(failures)])
    body = job_of(name, [group], retries={"failure": failures})
    return Submitted(0.0, body, frozenset({S.SUCCEEDED}))


def fails(rng: Random, name: str) -> Submitted:
    """It fails more often than it may."""
    end = rng.choice([["exit", "3"], ["oom"]])
    group = group_of(rng, "main", [*sleep(rng, 8.0), *end])
    body = job_of(name, [group], retries={"failure": rng.randint(0, 1)})
    return Submitted(0.0, body, frozenset({S.FAILED}))


def _fails_by_a_rule(rng: Random, name: str) -> Submitted:
    """A rule ends each task with its first failure, though retries are left."""
    rules = [{"codes": [75], "do": "retry"}, {"reason": "exit_status", "do": "fail"}]
    group = group_of(rng, "main", [*sleep(rng, 8.0), "exit", "3"], on_exit=rules)
    return Submitted(0.0, job_of(name, [group], retries={"failure": 3}), frozenset({S.FAILED}))


def _retried_by_a_rule(rng: Random, name: str) -> Submitted:
    """A rule retries what fails at first."""
    failures, rules = rng.randint(1, 2), [{"codes": [1], "do": "retry"}]
    words = [*sleep(rng, 8.0), "fail-first", str(failures)]
    group = group_of(rng, "main", words, on_exit=rules)
    body = job_of(name, [group], retries={"failure": failures})
    return Submitted(0.0, body, frozenset({S.SUCCEEDED}))


def _grows(rng: Random, name: str) -> Submitted:
    """A rule increases its memory after each failure, until its program has enough."""
    failures, words = rng.randint(1, 3), sleep(rng, 8.0)
    memory = 64 << failures
    increase: dict[str, Any] = {"resources": {"memory": rng.choice(["2x", f"{memory}Mi"])}}
    if increase["resources"]["memory"] == "2x" and rng.random() < 0.5:
        increase |= {"resources": {"memory": "4x"}, "max_resources": {"memory": f"{memory}Mi"}}
    rules = [{"reason": "oom", "do": "retry", **increase}]
    group = group_of(rng, "main", [*words, "need-memory", str(memory)], on_exit=rules)
    body = job_of(name, [group], retries={"failure": failures})
    return Submitted(0.0, body, frozenset({S.SUCCEEDED}))


def _outgrows(rng: Random, name: str) -> Submitted:
    """No cell has the memory that its rule asks for in the end."""
    rules = [{"reason": "oom", "do": "retry", "resources": {"memory": "8x"}}]
    small = {"cpu": 0.25, "memory": "64Mi"}
    group = group_of(rng, "main", [*sleep(rng, 5.0), "oom"], on_exit=rules, resources=small)
    body = job_of(name, [group], retries={"failure": 9}, allow_unsatisfiable=False)
    return Submitted(0.0, body, frozenset({S.FAILED}))


def _fails_in_the_system(rng: Random, name: str) -> Submitted:
    group = group_of(rng, "main", ["fail-system"])
    body = job_of(name, [group], retries={"system": rng.randint(0, 1)})
    return Submitted(0.0, body, frozenset({S.FAILED}))


def vanishes(rng: Random, name: str) -> Submitted:
    """Its containers are gone all of a sudden, more often than that may be."""
    group = group_of(rng, "main", [*sleep(rng, 5.0), "vanish"])
    body = job_of(name, [group], retries={"preemption": rng.randint(0, 2)})
    return Submitted(0.0, body, frozenset({S.WORKER_FAILED}))


def _overruns(rng: Random, name: str) -> Submitted:
    words = ["deaf"] if rng.random() < 0.3 else []
    group = group_of(rng, "main", [*words, "sleep", "90"], timeout_seconds=rng.uniform(1.0, 10.0))
    return Submitted(0.0, job_of(name, [group]), frozenset({S.KILLED}))


def _endless(rng: Random, name: str) -> Submitted:
    """Only a stop that arrives ends it."""
    words = ["deaf"] if rng.random() < 0.3 else []
    group = group_of(rng, "main", [*words, "sleep", "1000000"])
    cancel_at = rng.uniform(1.0, 80.0)
    return Submitted(0.0, job_of(name, [group]), frozenset({S.KILLED}), cancel_at=cancel_at)


def in_order(rng: Random, name: str) -> Submitted:
    """Each group waits for the one before."""
    until = rng.choice(["started", "succeeded", "finished"])
    first = group_of(rng, "first", [*sleep(rng, 10.0), "result", "one"])
    second = group_of(
        rng, "second", sleep(rng, 10.0), depends_on=[{"group": "first", "until": until}]
    )
    third = group_of(rng, "third", sleep(rng, 5.0), depends_on=[{"group": "second"}])
    groups = [first, second, third][: rng.randint(2, 3)]
    return Submitted(0.0, job_of(name, groups), frozenset({S.SUCCEEDED}), results={"first": "one"})


def _out_of_order(rng: Random, name: str) -> Submitted:
    """The first group fails: the second can never start."""
    first = group_of(rng, "first", [*sleep(rng, 5.0), "exit", "1"])
    second = group_of(rng, "second", sleep(rng), depends_on=[{"group": "first"}])
    tolerated = first["replicas"] if rng.random() < 0.5 else 0
    body = job_of(name, [first, second], max_task_failures=tolerated)
    return Submitted(0.0, body, frozenset({S.FAILED}))


def _with_minima(rng: Random, name: str) -> Submitted:
    good = group_of(rng, "good", sleep(rng, 10.0))
    bad = group_of(rng, "bad", [*sleep(rng, 10.0), "exit", "1"], min_available=0)
    good["min_available"] = rng.randint(0, good["replicas"])
    return Submitted(0.0, job_of(name, [good, bad]), frozenset({S.SUCCEEDED}))


def by_minima(rng: Random, name: str) -> Submitted:
    """Groups that succeed or fail as a whole; Volcano's rule decides how the job ends."""
    groups, met, succeeded = [], True, 0
    for number in range(rng.randint(2, 3)):
        is_good = rng.random() < 0.6
        end = [] if is_good else ["exit", "1"]
        group = group_of(rng, f"group-{number}", [*sleep(rng, 8.0), *end])
        group["min_available"] = rng.choice([0, rng.randint(0, group["replicas"])])
        groups.append(group)
        met = met and (is_good or not group["min_available"])
        succeeded += group["replicas"] if is_good else 0
    replicas = sum(group["replicas"] for group in groups)
    minimum = rng.randint(sum(group["min_available"] for group in groups), replicas)
    body = job_of(name, groups, min_available=minimum, max_task_failures=replicas)
    expected = S.SUCCEEDED if met and succeeded >= minimum else S.FAILED
    return Submitted(0.0, body, frozenset({expected}))


def _with_a_deadline(rng: Random, name: str) -> Submitted:
    group = group_of(rng, "main", sleep(rng))
    group["replicas"] = rng.randint(4, 12)
    body = job_of(name, [group], scheduling_timeout_seconds=rng.uniform(5.0, 60.0))
    return Submitted(0.0, body, frozenset({S.SUCCEEDED, S.UNSCHEDULABLE}))


def _many(rng: Random, name: str) -> Submitted:
    group = group_of(rng, "main", sleep(rng, 12.0))
    group["replicas"] = rng.randint(8, 24)
    return Submitted(0.0, job_of(name, [group]), frozenset({S.SUCCEEDED}))


_KINDS: tuple[Callable[[Random, str], Submitted], ...] = (
    succeeds,
    succeeds,
    succeeds_at_last,
    fails,
    _fails_by_a_rule,
    _retried_by_a_rule,
    _grows,
    _outgrows,
    _fails_in_the_system,
    vanishes,
    _overruns,
    _endless,
    in_order,
    in_order,
    _out_of_order,
    _with_minima,
    by_minima,
    _with_a_deadline,
    _many,
)
