"""Jobs with concurrency keys, and what must be true of the attempts that hold the keys."""

from collections.abc import Iterator
from random import Random
from typing import Any

from controlplane.domain.state.states import TERMINAL
from controlplane.queries.sql import rows
from tests.simulation import gangs
from tests.simulation.jobs import (
    Submitted,
    fails,
    in_order,
    spoil,
    succeeds,
    succeeds_at_last,
    vanishes,
)

_KINDS: tuple[gangs.Kind, ...] = (
    *(succeeds, succeeds, succeeds_at_last),
    fails,
    vanishes,
    in_order,
    gangs.gang_succeeds,
)
_POLICIES = ("wait", "wait", "wait", "reject", "replace")
_ENDED = ", ".join(f"{state:d}" for state in sorted(TERMINAL))


def choose_keys(seed: int) -> bool:
    """Return whether the seed has keys, if nothing contends there (`extras.has_keys`)."""
    return Random(f"keys of {seed}").random() < 0.15


def draw_keyed_jobs(rng: Random) -> list[Submitted]:
    """Draw up to six jobs with one of two keys; jobs of a key share its rate, not its limit."""
    rates: dict[str, dict[str, int] | None] = {
        "key-0": None,
        "key-1": rng.choice(
            [None, {"count": rng.randint(5, 8), "per_seconds": rng.randint(3, 15)}]
        ),
    }
    jobs = []
    for number in range(rng.randint(3, 6)):
        job = rng.choice(_KINDS)(rng, f"keyed-{number}")
        job.at = rng.uniform(0.0, 40.0)
        key = rng.choice(sorted(rates))
        # A gang must fit by itself.
        least = job.minimum() if job.body.get("coscheduled") else 1
        rule: dict[str, Any] = {"key": key, "limit": max(rng.randint(1, 4), least)}
        rate = rates[key]
        if rate is not None and rate["count"] >= least:
            rule["starts"] = rate
        rule["on_conflict"] = rng.choice(_POLICIES)
        job.body["concurrency"] = rule
        jobs.append(job)
    spoil(rng, jobs)
    return sorted(jobs, key=lambda job: job.at)


def find_conflict(job: Submitted) -> tuple[str, list[int]]:
    """Return why the key of a job refuses it just now, and which jobs it would replace.

    By the rows of tasks: the job fits while its tasks and the open ones of others, which are not
    being stopped, are within its limit.
    """
    rule = job.body.get("concurrency")
    if rule is None or rule["on_conflict"] == "wait":
        return "", []
    others = rows(
        f"""
        SELECT j.id, j.ending_as IS NOT NULL, count(t.id)
        FROM controlplane_job j LEFT JOIN controlplane_task t
          ON t.job_id = j.id AND t.state NOT IN ({_ENDED})
        WHERE j.spec -> 'concurrency' ->> 'key' = %s AND j.finished_at IS NULL
        GROUP BY j.id ORDER BY j.id
        """,
        [rule["key"]],
    )
    if rule["on_conflict"] == "replace":
        others = [one for one in others if not one[1]]
    own, replaced = min(job.replicas(), rule["limit"]), list[int]()
    while sum(one[2] for one in others) + own > rule["limit"]:
        if rule["on_conflict"] == "reject":
            return f"key {rule['key']} is full", []
        replaced.append(others.pop(0)[0])
    return "", replaced


def check_keys() -> Iterator[str]:
    """Find a key that more attempts hold than the last one of them allows, and exceeded rates."""
    for key, held, limit in rows(
        """
        SELECT j.spec -> 'concurrency' ->> 'key', count(*),
               max((j.spec -> 'concurrency' ->> 'limit')::int)
        FROM controlplane_attempt a JOIN controlplane_job j ON j.id = a.job_id
        WHERE a.released_at IS NULL AND j.spec ? 'concurrency' GROUP BY 1
        """
    ):
        if held > limit:
            yield f"{held} attempts hold {key}, {limit} are allowed"
    for uid, started, limit in rows(
        """
        SELECT a.uid, count(*), (j.spec #>> '{concurrency,starts,count}')::int
        FROM controlplane_attempt a
        JOIN controlplane_job j ON j.id = a.job_id
          AND j.spec #> '{concurrency,starts}' IS NOT NULL
        JOIN controlplane_attempt b ON b.created_at <= a.created_at
          AND b.created_at > a.created_at
            - make_interval(secs => (j.spec #>> '{concurrency,starts,per_seconds}')::int)
        JOIN controlplane_job o ON o.id = b.job_id
          AND o.spec -> 'concurrency' ->> 'key' = j.spec -> 'concurrency' ->> 'key'
          AND o.spec #> '{concurrency,starts}' IS NOT NULL
        GROUP BY a.uid, j.id
        """
    ):
        if started > limit:
            yield f"attempt {uid} is start {started} in its span, {limit} are allowed"
