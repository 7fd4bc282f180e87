"""Store the results of succeeded tasks as entries.

A task has succeeded already: an error of the store changes its cache status only.
"""

import time
from collections.abc import Mapping, Sequence
from datetime import datetime

import structlog

from controlplane.commands.cache.reservations import search_again
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.contract.artifacts import path_of
from controlplane.contract.states import TaskState
from controlplane.domain.cache.policy import RUNS, CacheStatus
from controlplane.queries.cache.due import CacheCandidate, find_candidates
from controlplane.queries.locks import lock_jobs
from controlplane.queries.sql import execute, rows
from controlplane.storage.manifests import put_manifest

log = structlog.get_logger(__name__)

PAGE = 500
SLICE_SECONDS = 2.0


def store_results(*, now: datetime) -> Mapping[str, int]:
    """Store the results of succeeded tasks, page by page; return how many entries there are."""
    stored, until = 0, time.monotonic() + SLICE_SECONDS
    while found := find_candidates(page=PAGE):
        stored += _store(found, now)
        if len(found) < PAGE or time.monotonic() >= until:
            break
    return {"cache_entries": stored}


def _store(found: Sequence[CacheCandidate], now: datetime) -> int:
    manifests: dict[int, str] = {}
    statuses: dict[int, CacheStatus] = {}
    for item in found:
        if item.is_truncated or not _is_kept_here(item):
            statuses[item.task_id] = CacheStatus.SKIPPED
            continue
        try:
            manifests[item.task_id] = put_manifest(
                item.prefix, result=item.result, files=item.outputs
            )
            statuses[item.task_id] = CacheStatus.POPULATED
        except OSError as error:
            log.warning("cache_put_failed", task=item.task_id, error=str(error))
            statuses[item.task_id] = CacheStatus.PUT_FAILURE

    def work() -> int:
        # A job that is deleted meanwhile removes its files, so its result must not be stored.
        jobs = lock_jobs({item.job_id for item in found})
        visible = _visible(list(jobs))
        kept = [it for it in found if it.task_id in manifests and it.job_id in visible]
        replaced = [item.identity for item in kept if item.policy.overwrite]
        execute(_REPLACE, [replaced, now])
        entries = _insert(kept, manifests, now)
        _write(statuses)
        search_again([item.identity for item in kept])
        return entries

    return run_in_transaction(work)


def _is_kept_here(item: CacheCandidate) -> bool:
    """Return whether all outputs are in the store of the control plane."""
    uid = str(item.attempt_uid)
    return all(file["uri"] == path_of(uid, file["name"]) for file in item.outputs)


def _visible(job_ids: list[int]) -> set[int]:
    statement = "SELECT id FROM controlplane_job WHERE id = ANY(%s) AND deleted_at IS NULL"
    return {job_id for (job_id,) in rows(statement, [job_ids])}


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


def _insert(found: Sequence[CacheCandidate], manifests: Mapping[int, str], now: datetime) -> int:
    return execute(
        _INSERT,
        {
            "identity": [item.identity for item in found],
            "domain": [item.domain_id for item in found],
            "project": [item.project_id for item in found],
            "shared": [item.policy.scope == "domain" for item in found],
            "key": [item.key for item in found],
            "job": [item.job_id for item in found],
            "task": [item.task_id for item in found],
            "uid": [item.attempt_uid for item in found],
            "prefix": [item.prefix for item in found],
            "manifest": [manifests[item.task_id] for item in found],
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
