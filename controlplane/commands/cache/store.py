"""Store the results of succeeded tasks as entries.

A task has succeeded already: an error of the store changes its cache status only.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import structlog

from controlplane import clock
from controlplane.commands.cache.batches import map_in_time
from controlplane.commands.cache.reservations import search_again
from controlplane.commands.state.transactions import for_each_batch
from controlplane.contract.artifacts import path_of
from controlplane.contract.states import TaskState
from controlplane.domain.cache.policy import RUNS, CachePolicy, CacheStatus
from controlplane.outbox import wakes
from controlplane.queries.cache.due import STORES, CacheCandidate, find_candidates
from controlplane.queries.locks import lock_jobs
from controlplane.queries.sql import execute, rows
from controlplane.storage.manifests import put_manifest

log = structlog.get_logger(__name__)

PAGE = 500
SLICE_SECONDS = 2.0


def store_results(*, now: datetime) -> Mapping[str, int]:
    """Store the results of succeeded tasks, page by page; return how many entries were made."""
    stored, until = 0, clock.monotonic() + SLICE_SECONDS
    while found := find_candidates(page=PAGE):
        prepared = map_in_time(_prepare, found, until=until)
        stored += _store(found[: len(prepared)], prepared, now)
        if len(found) < PAGE and len(prepared) == len(found):
            if any(isinstance(result, CacheStatus) for result in prepared):
                wakes.wake_convergence()  # their keys are free, although there is no entry
            break
        if clock.monotonic() >= until:
            # Other rules first. If the store does not respond, the next regular tick continues.
            if CacheStatus.PUT_FAILURE not in prepared:
                wakes.wake_convergence()
            break
    return {"cache_entries": stored}


@dataclass(frozen=True, slots=True)
class _Storable:
    """A candidate whose files are stored, with its policy and the SHA-256 of its manifest."""

    item: CacheCandidate
    policy: CachePolicy
    manifest_sha256: str


def _store(
    found: Sequence[CacheCandidate], prepared: Sequence[_Storable | CacheStatus], now: datetime
) -> int:
    by_job: dict[int, list[CacheCandidate]] = defaultdict(list)
    storable: dict[int, _Storable] = {}
    statuses: dict[int, CacheStatus] = {}
    for item, result in zip(found, prepared, strict=True):
        by_job[item.job_id].append(item)
        if isinstance(result, CacheStatus):
            statuses[item.task_id] = result
        else:
            storable[item.task_id] = result
            statuses[item.task_id] = CacheStatus.POPULATED

    def work(job_ids: Sequence[int]) -> int:
        lock_jobs(job_ids)
        tasks = [item.task_id for job_id in job_ids for item in by_job[job_id]]
        due = _find_due(tasks)
        kept = [storable[it] for it in tasks if it in storable and it in due]
        replaced = [it.item.identity for it in kept if it.policy.overwrite]
        execute(_REPLACE, [replaced, now])
        entries = _insert(kept, now)
        _write({task_id: statuses[task_id] for task_id in tasks})
        search_again([it.item.identity for it in kept])
        return entries

    return sum(for_each_batch(list(by_job), work, what="cache entry"))


def _prepare(item: CacheCandidate) -> _Storable | CacheStatus:
    """Store the manifest of a candidate; return its status if it cannot become an entry."""
    if item.policy is None or item.is_truncated or item.was_entered or not _is_kept_here(item):
        return CacheStatus.SKIPPED
    try:
        sha256 = put_manifest(item.prefix, result=item.result, files=item.outputs)
    except OSError as error:
        log.warning("cache_put_failed", task=item.task_id, error=str(error))
        return CacheStatus.PUT_FAILURE
    return _Storable(item, item.policy, sha256)


def _is_kept_here(item: CacheCandidate) -> bool:
    """Return whether all outputs are in the store of the control plane."""
    uid = str(item.attempt_uid)
    return all(file["uri"] == path_of(uid, file["name"]) for file in item.outputs)


def _find_due(tasks: Sequence[int]) -> set[int]:
    """Return the tasks that no other process has stored, and whose job was not deleted meanwhile.

    The deletion of a job removes the files of its tasks.
    """
    found = rows(
        f"""
        SELECT t.id FROM (SELECT t.* {STORES}) t
        JOIN controlplane_job j ON j.id = t.job_id AND j.deleted_at IS NULL
        WHERE t.id = ANY(%s)
        """,
        [list(tasks)],
    )
    return {task_id for (task_id,) in found}


_REPLACE = """
WITH held AS MATERIALIZED (
    SELECT id FROM controlplane_cacheentry
    WHERE identity = ANY(%s::uuid[]) AND evicted_at IS NULL ORDER BY id FOR UPDATE
)
UPDATE controlplane_cacheentry e SET evicted_at = %s, evicted_for = 'a task replaced it'
FROM held WHERE e.id = held.id
"""

# Of tasks that ran at the same time the first one is stored.
_INSERT = """
INSERT INTO controlplane_cacheentry
    (identity, domain_id, project_id, owner_id, is_shared, key, job_id, task_id, attempt_uid,
     prefix, manifest_sha256, result, outputs, size_bytes, hits, created_at, used_at, evicted_for)
SELECT DISTINCT ON (i.identity) i.identity, i.domain, i.project, o.owner_id, i.shared, i.key, i.job,
       i.task, i.uid, i.prefix, i.manifest, a.result, COALESCE(a.details -> 'outputs', '[]'),
       i.size, 0, %(now)s, %(now)s, ''
FROM unnest(%(identity)s::uuid[], %(domain)s::bigint[], %(project)s::bigint[],
            %(shared)s::boolean[], %(key)s::text[], %(job)s::bigint[], %(task)s::bigint[],
            %(uid)s::uuid[], %(prefix)s::text[], %(manifest)s::text[], %(size)s::bigint[])
     AS i(identity, domain, project, shared, key, job, task, uid, prefix, manifest, size)
JOIN controlplane_attempt a ON a.uid = i.uid
JOIN controlplane_job o ON o.id = i.job
ORDER BY i.identity, i.task
ON CONFLICT (identity) WHERE evicted_at IS NULL DO NOTHING
"""


def _insert(kept: Sequence[_Storable], now: datetime) -> int:
    found = [it.item for it in kept]
    return execute(
        _INSERT,
        {
            "identity": [item.identity for item in found],
            "domain": [item.domain_id for item in found],
            "project": [item.project_id for item in found],
            "shared": [it.policy.scope == "domain" for it in kept],
            "key": [item.key for item in found],
            "job": [item.job_id for item in found],
            "task": [item.task_id for item in found],
            "uid": [item.attempt_uid for item in found],
            "prefix": [item.prefix for item in found],
            "manifest": [it.manifest_sha256 for it in kept],
            "size": [_size_of(item) for item in found],
            "now": now,
        },
    )


def _size_of(item: CacheCandidate) -> int:
    return sum(int(file["size"]) for file in item.outputs) + len((item.result or "").encode())


def _write(statuses: Mapping[int, CacheStatus]) -> None:
    runs = ", ".join(str(int(status)) for status in sorted(RUNS))
    execute(
        f"""
        UPDATE controlplane_task t SET cache_status = i.status
        FROM unnest(%s::bigint[], %s::smallint[]) AS i(id, status)
        WHERE t.id = i.id AND t.state = {TaskState.SUCCEEDED:d} AND t.cache_status IN ({runs})
        """,
        [list(statuses), [int(status) for status in statuses.values()]],
    )
