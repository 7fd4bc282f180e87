"""Identical tasks, which share results by the cache, and a store that fails now and then."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest import mock

from controlplane.commands.cache import lookup, store
from controlplane.contract.states import TaskState as S
from controlplane.domain.cache.policy import RUNS, CacheStatus
from controlplane.queries.sql import rows
from tests.simulation.jobs import Submitted, fails, succeeds, succeeds_at_last

_LIKELY_FAULTS = (0.0, 0.0, 0.1, 0.5)


def identical(rng: Random, name: str) -> list[Submitted]:
    """Two to five jobs of one key. Most of them serialize, and some replace the entry."""
    draw = rng.choice([succeeds, succeeds, succeeds_at_last, fails])
    first = draw(rng, f"{name}-0")
    is_serial = rng.random() < 0.7
    jobs = []
    for number in range(rng.randint(2, 5)):
        group = dict(first.body["groups"][0], replicas=rng.randint(1, 3))
        body = {**first.body, "name": f"{name}-{number}", "groups": [group]}
        body["cache"] = {
            "enabled": True,
            "key": name,
            "serialize": is_serial,
            "overwrite": rng.random() < 0.15,
        }
        job = Submitted(rng.uniform(0.0, 30.0), body, first.expected, results=first.results)
        job.at = rng.choice([0.0, job.at])
        if draw is succeeds_at_last:
            # Programs fail by the number of the attempt, which the cache does not count.
            job.body["retries"] = {"failure": 5}
        jobs.append(job)
    return sorted(jobs, key=lambda job: job.at)


@contextmanager
def faulty_store(seed: int, is_healed: Callable[[], bool]) -> Iterator[None]:
    """Let the store of the seed fail now and then, until all is healed."""
    rng = Random(f"store of {seed}")
    likely = rng.choice(_LIKELY_FAULTS)

    def failing(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if rng.random() < likely and not is_healed():
                raise OSError(5, "Input/output error")
            return real(*arguments, **named)

        return call

    with (
        mock.patch.object(store, "put_manifest", failing(store.put_manifest)),
        mock.patch.object(lookup, "is_complete", failing(lookup.is_complete)),
    ):
        yield


def results_to_store() -> list[str]:
    """Tasks that have succeeded, but whose results are not in the cache yet."""
    found = rows(
        "SELECT id FROM controlplane_task WHERE state = %s AND cache_status = ANY(%s)",
        [int(S.SUCCEEDED), [int(status) for status in RUNS]],
    )
    return [f"the result of task {task_id} is not stored" for (task_id,) in found]


def check_identical() -> list[str]:
    """Each hit has the result of an attempt that succeeded, of a task with the same key."""
    found = rows(
        """
        SELECT t.id FROM controlplane_task t
        LEFT JOIN controlplane_cacheentry e
          ON e.id = t.cache_entry_id AND e.identity = t.cache_identity
        LEFT JOIN controlplane_attempt a ON a.uid = e.attempt_uid
        WHERE t.cache_status = %(hit)s AND (
            e.id IS NULL OR e.created_at > t.finished_at
            OR a.state <> %(succeeded)s OR a.result IS DISTINCT FROM e.result AND a.uid IS NOT NULL)
        """,
        {"hit": int(CacheStatus.HIT), "succeeded": int(S.SUCCEEDED)},
    )
    return [f"task {task_id} has a result that no task of its key computed" for (task_id,) in found]
