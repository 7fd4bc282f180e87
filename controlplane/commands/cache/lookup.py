"""Look up the results of waiting tasks: hits succeed at once, the others run or wait.

The store is read outside transactions. An error of the store means that the task runs.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from uuid import UUID

import structlog

from controlplane import clock
from controlplane.commands.cache.batches import map_in_time
from controlplane.commands.cache.evict import evict_entries
from controlplane.commands.state.apply import apply
from controlplane.commands.state.transactions import for_each_batch
from controlplane.contract.states import TaskState
from controlplane.domain.cache.keys import (
    NoKey,
    derive_key,
    digest_of_files,
    given_key,
    identity_of,
)
from controlplane.domain.cache.policy import MAY_WAIT, CacheStatus, lacks_outputs
from controlplane.domain.state.effects import Effects
from controlplane.domain.state.states import Reason
from controlplane.domain.state.task_changes import ChangeCause, change_task
from controlplane.domain.state.transitions import Event
from controlplane.outbox import wakes
from controlplane.queries.attempts.artifacts import digest_outputs, digest_results
from controlplane.queries.cache.due import (
    CachedGroup,
    LookupTask,
    find_lookups,
    load_cached_groups,
)
from controlplane.queries.cache.entries import CachedResult, find_entries, hold_entries
from controlplane.queries.locks import lock_jobs
from controlplane.queries.sql import execute, rows
from controlplane.queries.task_facts import load_facts_of_tasks
from controlplane.storage.manifests import StoredFiles, is_complete

log = structlog.get_logger(__name__)

PAGE = 2_000
SLICE_SECONDS = 2.0

_Digest = Callable[[int, str | None], str]
"""Returns the digest of what a group produced: its results, or an output."""


@dataclass(frozen=True, slots=True)
class LookupResult:
    """What a lookup found for a task. `entry`: of a hit. `waits`: it needs the key to run."""

    task: LookupTask
    status: CacheStatus
    key: str | None = None
    identity: UUID | None = None
    entry: CachedResult | None = None
    waits: bool = False


def search_cache(*, now: datetime) -> Mapping[str, int]:
    """Look up due tasks, page by page; return how many there were, and the hits."""
    done, hits, until = 0, 0, clock.monotonic() + SLICE_SECONDS
    while found := find_lookups(now, page=PAGE):
        results = _judge(found, now, until)
        hits += _apply(results, now)
        done += len(results)
        if any(result.waits for result in results):
            wakes.wake_convergence()  # their keys may be free
        if len(found) < PAGE and len(results) == len(found):
            break
        if clock.monotonic() >= until:
            # Other rules first. If the store does not respond, the next regular tick continues.
            if all(result.status is not CacheStatus.LOOKUP_FAILURE for result in results):
                wakes.wake_convergence()
            break
    return {"cache_lookups": done, "cache_hits": hits}


def _judge(tasks: Sequence[LookupTask], now: datetime, until: float) -> list[LookupResult]:
    """Decide about the tasks, without a lock; not about those whose entries took too long."""
    groups = load_cached_groups({task.group_id for task in tasks})
    digest = cache(_digest)  # many tasks read the same groups
    keyed = [_with_key(task, groups.get(task.group_id), digest) for task in tasks]
    entries = find_entries({item.identity for item in keyed if item.identity is not None})
    checked = _check(entries, now, until)
    return [
        _decide(item, groups.get(item.task.group_id), entries, checked)
        for item in keyed
        if item.identity not in entries or item.identity in checked
    ]


def _with_key(task: LookupTask, group: CachedGroup | None, digest: _Digest) -> LookupResult:
    """Return a miss with its key; SKIPPED without one, or if its group is unreadable."""
    if group is None:
        return LookupResult(task, CacheStatus.SKIPPED)
    policy = group.policy
    try:
        if policy.key is not None:
            key = given_key(policy.key, policy.version)
        else:
            key = task.key or derive_key(
                group.launch,
                index=task.index,
                replicas=group.replicas,
                version=policy.version,
                digests=_digests(group, digest),
            )
    except NoKey:
        return LookupResult(task, CacheStatus.SKIPPED)
    except (KeyError, TypeError, AttributeError) as error:  # of an invalid row
        log.error("cache_key_failed", task=task.task_id, error=repr(error))
        return LookupResult(task, CacheStatus.SKIPPED)
    return LookupResult(task, CacheStatus.MISS, key, identity_of(group.scope, key))


def _digests(group: CachedGroup, digest: _Digest) -> dict[int, str]:
    """Return the digests of what the group reads from other groups, by position of the input."""
    return {
        position: digest(group.sources[item["from_group"]], item.get("output"))
        for position, item in enumerate(group.launch.get("inputs") or ())
        if "from_group" in item
    }


def _digest(group_id: int, output: str | None) -> str:
    return digest_of_files(
        digest_results(group_id) if output is None else digest_outputs(group_id, output)
    )


def _check(
    entries: Mapping[UUID, CachedResult], now: datetime, until: float
) -> dict[UUID, CacheStatus]:
    """Return HIT for entries whose files match their manifests; evict those that differ.

    Entries that cannot be checked before `until` are left out.
    """
    found = map_in_time(_check_files, list(entries.values()), until=until)
    checked = dict(zip(entries, found, strict=False))
    damaged = [
        entries[key].entry_id for key, status in checked.items() if status is CacheStatus.MISS
    ]
    if damaged:
        evict_entries(damaged, "its files differ from its manifest", now=now)
    return checked


def _check_files(entry: CachedResult) -> CacheStatus:
    try:
        files = StoredFiles(entry.prefix, entry.outputs, entry.manifest_sha256)
        return CacheStatus.HIT if is_complete(files) else CacheStatus.MISS
    except OSError as error:
        log.warning("cache_lookup_failed", entry=entry.entry_id, error=str(error))
        return CacheStatus.LOOKUP_FAILURE


def _decide(
    item: LookupResult,
    group: CachedGroup | None,
    entries: Mapping[UUID, CachedResult],
    checked: Mapping[UUID, CacheStatus],
) -> LookupResult:
    if item.identity is None or group is None:
        return item
    entry = None if group.policy.overwrite else entries.get(item.identity)
    status = CacheStatus.MISS if entry is None else checked[item.identity]
    if status is CacheStatus.HIT and entry is not None:
        if lacks_outputs(group.launch, entry.outputs):
            return LookupResult(item.task, CacheStatus.SKIPPED, item.key, item.identity)
        return LookupResult(item.task, status, item.key, item.identity, entry)
    if status is CacheStatus.MISS and group.policy.serialize:
        status = CacheStatus.WAITING
    waits = group.policy.serialize and status in MAY_WAIT
    return LookupResult(item.task, status, item.key, item.identity, waits=waits)


def _apply(results: Sequence[LookupResult], now: datetime) -> int:
    """Write the results under the locks of the jobs; return the number of hits."""
    by_job: dict[int, list[LookupResult]] = defaultdict(list)
    for result in results:
        by_job[result.task.job_id].append(result)

    def work(job_ids: Sequence[int]) -> int:
        jobs = lock_jobs(job_ids)
        found = [result for job_id in jobs for result in by_job[job_id]]
        kept = hold_entries({result.entry.entry_id for result in found if result.entry})
        # Tasks whose entry was evicted meanwhile stay due.
        hits = {
            result.task.task_id: (result, result.entry)
            for result in found
            if result.entry is not None and result.entry.entry_id in kept
        }
        others = [result for result in found if result.entry is None]
        _write(others)
        facts = [
            item
            for item in load_facts_of_tasks(list(hits))
            if item.state is TaskState.PENDING and jobs[item.job_id].ending_as is None
        ]
        # Another process may have looked a task up meanwhile, or let it wait.
        written = _write([hits[item.task_id][0] for item in facts])
        facts = [item for item in facts if item.task_id in written]
        changes = [
            change_task(item, Event.CACHE_HIT, _cause(hits[item.task_id][1]), now=now)
            for item in facts
        ]
        _count_hits([hits[item.task_id][1] for item in facts], now)
        effects = Effects(changes=changes, frees=bool(others))
        return apply(effects, jobs=jobs, now=now, actor="cache").changed

    return sum(for_each_batch(list(by_job), work, what="cache lookup"))


def _cause(entry: CachedResult) -> ChangeCause:
    origin = f"job {entry.job_id}, task {entry.task_id}"
    return ChangeCause(Reason.CACHE_HIT, message=f"the result is that of {origin}")


_WRITE = f"""
UPDATE controlplane_task t SET
    cache_status = i.status, cache_blocked = i.blocked, cache_key = i.key,
    cache_identity = i.identity, cache_entry_id = i.entry
FROM unnest(%(task)s::bigint[], %(status)s::smallint[], %(blocked)s::boolean[], %(key)s::text[],
            %(identity)s::uuid[], %(entry)s::bigint[])
     AS i(task, status, blocked, key, identity, entry)
WHERE t.id = i.task AND t.state = {TaskState.PENDING:d} AND t.cache_status = {CacheStatus.LOOKUP:d}
RETURNING t.id
"""


def _write(results: Sequence[LookupResult]) -> set[int]:
    """Write the results of tasks that are still to be looked up; return these tasks."""
    written = rows(
        _WRITE,
        {
            "task": [result.task.task_id for result in results],
            "status": [int(result.status) for result in results],
            "blocked": [result.waits for result in results],
            "key": [result.key for result in results],
            "identity": [result.identity for result in results],
            "entry": [result.entry and result.entry.entry_id for result in results],
        },
    )
    return {task_id for (task_id,) in written}


def _count_hits(hits: Sequence[CachedResult], now: datetime) -> None:
    """Count the hits of entries, which are locked.

    The time of the last use, which has an index, is exact to a minute.
    """
    counts = Counter(entry.entry_id for entry in hits)
    execute(
        """
        UPDATE controlplane_cacheentry e
        SET hits = e.hits + i.hits,
            used_at = CASE WHEN e.used_at < %s::timestamptz - interval '1 minute'
                           THEN %s ELSE e.used_at END
        FROM unnest(%s::bigint[], %s::integer[]) AS i(id, hits) WHERE e.id = i.id
        """,
        [now, now, list(counts), list(counts.values())],
    )
