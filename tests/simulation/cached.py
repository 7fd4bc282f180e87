"""The result cache: a store that fails now and then, and what must be true of hits."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest import mock

from controlplane.commands.cache import lookup, store
from controlplane.contract.states import TaskState as S
from controlplane.domain.cache.policy import RUNS, CacheStatus
from controlplane.queries.sql import rows

_LIKELY_FAULTS = (0.0, 0.0, 0.1, 0.5)


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


def check_needed(uid: str) -> list[str]:
    """A task is not placed if its key has an entry, unless it overwrites or could not look it up.

    Retries are not looked up. `uid`: of the attempt that was begun.
    """
    found = rows(
        """
        SELECT e.id FROM controlplane_attempt a
        JOIN controlplane_task t ON t.id = a.task_id AND t.cache_status = %s
        JOIN controlplane_taskgroup g ON g.id = t.group_id
        JOIN controlplane_cacheentry e ON e.identity = t.cache_identity
            AND e.created_at < a.created_at AND coalesce(e.evicted_at > a.created_at, true)
        WHERE a.uid = %s AND a.number = 1 AND NOT (g.cache ->> 'overwrite')::boolean
        """,
        [int(CacheStatus.MISS), uid],
    )
    return [f"its result was stored before as entry {entry_id}" for (entry_id,) in found]


def check_identical() -> list[str]:
    """Each hit has the result of an attempt that succeeded, of a task with the same key.

    The entry was present at the hit, and the task is not one that overwrites.
    """
    found = rows(
        """
        SELECT t.id FROM controlplane_task t
        JOIN controlplane_taskgroup g ON g.id = t.group_id
        LEFT JOIN controlplane_cacheentry e
          ON e.id = t.cache_entry_id AND e.identity = t.cache_identity
        LEFT JOIN controlplane_attempt a ON a.uid = e.attempt_uid
        WHERE t.cache_status = %(hit)s AND (
            e.id IS NULL OR e.created_at > t.finished_at OR e.evicted_at < t.finished_at
            OR (g.cache ->> 'overwrite')::boolean
            OR a.state <> %(succeeded)s OR a.result IS DISTINCT FROM e.result AND a.uid IS NOT NULL)
        """,
        {"hit": int(CacheStatus.HIT), "succeeded": int(S.SUCCEEDED)},
    )
    return [f"task {task_id} has a result that it must not have" for (task_id,) in found]
