"""Jobs of whose tasks no two attempts may run at the same time."""

from random import Random

from controlplane.contract.states import TaskState as S
from tests.simulation.jobs import Submitted, group_of, job_of, sleep


def exclusive(rng: Random, name: str) -> Submitted:
    """It succeeds at last, whatever happens to cells."""
    group = group_of(rng, "main", sleep(rng, rng.choice([10.0, 40.0])), exclusive=True)
    return Submitted(0.0, job_of(name, [group]), frozenset({S.SUCCEEDED}))


def exclusive_strictly(rng: Random, name: str) -> Submitted:
    """It waits for the word of its cell, which comes back when all is healed."""
    group = group_of(rng, "main", sleep(rng, rng.choice([10.0, 40.0])), exclusive="strict")
    return Submitted(0.0, job_of(name, [group]), frozenset({S.SUCCEEDED}))


def exclusive_for_long(rng: Random, name: str) -> Submitted:
    """Return a job that runs through most events, with or without signals, until it is ended."""
    words = ["deaf"] if rng.random() < 0.5 else []
    group = group_of(rng, "main", [*words, "sleep", "1000000"], replicas=rng.randint(3, 6))
    body = job_of(name, [group], exclusive=True)
    return Submitted(0.0, body, frozenset({S.KILLED}), cancel_at=rng.uniform(60.0, 140.0))


def exclusive_and_retried(rng: Random, name: str) -> Submitted:
    """Its first attempts fail or vanish by themselves."""
    failures = rng.randint(1, 2)
    words = [*sleep(rng, 12.0), "fail-first", str(failures)]
    group = group_of(rng, "main", words)
    body = job_of(name, [group], exclusive=True, retries={"failure": failures})
    return Submitted(0.0, body, frozenset({S.SUCCEEDED}))


def exclusive_once(rng: Random, name: str) -> Submitted:
    """It does not run twice at the same time, nor twice at all: a lease that is over ends it."""
    group = group_of(rng, "main", sleep(rng, 20.0))
    body = job_of(name, [group], exclusive=True, delivery="at_most_once")
    return Submitted(0.0, body, frozenset({S.SUCCEEDED, S.WORKER_FAILED, S.FAILED}))
