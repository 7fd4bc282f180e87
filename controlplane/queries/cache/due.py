"""Find the work of the cache: tasks to look up, results to store, waiters without an owner."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from controlplane.contract.artifacts import prefix_of
from controlplane.contract.states import TaskState as S
from controlplane.domain.cache.policy import MAY_WAIT, RUNS, STORE_SECONDS, CachePolicy
from controlplane.domain.cache.policy import CacheStatus as C
from controlplane.domain.state.states import ACTIVE
from controlplane.queries.sql import decoded, named_rows, rows

_RUNS = ", ".join(str(int(status)) for status in sorted(RUNS))
_MAY_WAIT = ", ".join(str(int(status)) for status in sorted(MAY_WAIT))
_ACTIVE = ", ".join(str(int(state)) for state in sorted(ACTIVE))

LOOKUPS = f"""
    FROM controlplane_task t
    JOIN controlplane_taskgroup g ON g.id = t.group_id
    JOIN controlplane_job j ON j.id = t.job_id
    WHERE t.state = {S.PENDING:d} AND t.cache_status = {C.LOOKUP:d} AND NOT t.attempt_open
      AND g.startable_at <= %(now)s AND j.ending_as IS NULL
    """

STORES = f"""
    FROM controlplane_task t WHERE t.state = {S.SUCCEEDED:d} AND t.cache_status IN ({_RUNS})
    """

# The owner keeps the key while its result is being stored. A process that dies then releases it
# after 30 seconds. No event has to release a reservation.
IS_HELD = f"""
    EXISTS (
        SELECT FROM controlplane_cachereservation r
        JOIN controlplane_task o ON o.id = r.task_id AND o.attempt_uid = r.attempt_uid
        WHERE r.identity = {{identity}} AND (
            o.state IN ({_ACTIVE})
            OR o.state = {S.SUCCEEDED:d} AND o.cache_status IN ({_RUNS})
               AND o.finished_at > %(now)s - interval '{STORE_SECONDS} seconds') OFFSET 0)
    """
"""Whether a task runs, or ran successfully a moment ago, for the key `identity`."""

WAITERS = f"""
    FROM (SELECT DISTINCT cache_identity FROM controlplane_task
          WHERE state = {S.PENDING:d} AND cache_identity IS NOT NULL
            AND cache_blocked AND cache_status IN ({_MAY_WAIT})) w
    WHERE NOT {IS_HELD.format(identity="w.cache_identity")}
    """


@dataclass(frozen=True, slots=True)
class CachedGroup:
    """The definition of a group that uses the cache. `sources`: ids of the job's groups by name."""

    policy: CachePolicy
    launch: Mapping[str, Any]
    replicas: int
    scope: str
    sources: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class LookupTask:
    """A task to look up. `key`: of an earlier lookup, if there was one."""

    task_id: int
    job_id: int
    group_id: int
    index: int
    key: str | None
    identity: UUID | None


@dataclass(frozen=True, slots=True)
class CacheCandidate:
    """A succeeded task with what its entry would contain. `policy`: None if it is unreadable.

    `was_entered`: a user ran a program in the attempt, which may have changed the result.
    """

    task_id: int
    job_id: int
    identity: UUID
    key: str
    policy: CachePolicy | None
    project_id: int
    domain_id: int
    attempt_uid: UUID
    prefix: str
    result: str | None
    is_truncated: bool
    was_entered: bool
    outputs: Sequence[Mapping[str, Any]]


def find_lookups(now: datetime, *, page: int) -> list[LookupTask]:
    """Return up to `page` tasks to look up, in the order of groups."""
    found = rows(
        f"""
        SELECT t.id, t.job_id, t.group_id, t.index, t.cache_key, t.cache_identity {LOOKUPS}
        ORDER BY t.group_id, t.index LIMIT %(page)s
        """,
        {"now": now, "page": page},
    )
    return [LookupTask(*row) for row in found]


def load_cached_groups(group_ids: Collection[int]) -> dict[int, CachedGroup]:
    """Return the definitions of groups that use the cache, by id, without unreadable ones."""
    found = named_rows(
        """
        SELECT g.id, g.job_id, g.cache, g.launch, g.replicas, j.project_id, p.domain_id,
               (SELECT jsonb_object_agg(o.name, o.id) FROM controlplane_taskgroup o
                WHERE o.job_id = g.job_id) AS sources
        FROM controlplane_taskgroup g
        JOIN controlplane_job j ON j.id = g.job_id
        JOIN controlplane_project p ON p.id = j.project_id
        WHERE g.id = ANY(%s) AND g.cache IS NOT NULL
        """,
        [list(group_ids)],
    )
    groups = {}
    for row in found:
        policy = CachePolicy.read(decoded(row.cache))
        if policy is None:
            continue
        scope = policy.scope_of(project_id=row.project_id, domain_id=row.domain_id)
        launch, sources = decoded(row.launch), decoded(row.sources)
        groups[row.id] = CachedGroup(policy, launch, row.replicas, scope, sources)
    return groups


def find_candidates(*, page: int) -> list[CacheCandidate]:
    """Return up to `page` succeeded tasks whose results are to be stored, in the order of ids."""
    found = named_rows(
        f"""
        SELECT t.id, t.job_id, t.cache_identity, t.cache_key, g.cache, j.project_id, p.domain_id,
               d.name AS domain, p.name AS project, a.uid, a.result, a.result_truncated,
               a.details -> 'outputs' AS outputs,
               EXISTS (SELECT FROM controlplane_execsession e
                       WHERE e.attempt_id = a.uid AND e.opened_at IS NOT NULL) AS was_entered
        FROM (SELECT t.* {STORES} ORDER BY t.id LIMIT %s) t
        JOIN controlplane_taskgroup g ON g.id = t.group_id
        JOIN controlplane_job j ON j.id = t.job_id
        JOIN controlplane_project p ON p.id = j.project_id
        JOIN controlplane_domain d ON d.id = p.domain_id
        JOIN controlplane_attempt a ON a.uid = t.attempt_uid
        ORDER BY t.id
        """,
        [page],
    )
    return [
        CacheCandidate(
            task_id=row.id,
            job_id=row.job_id,
            identity=row.cache_identity,
            key=row.cache_key,
            policy=CachePolicy.read(decoded(row.cache)),
            project_id=row.project_id,
            domain_id=row.domain_id,
            attempt_uid=row.uid,
            prefix=prefix_of(
                domain=row.domain,
                project=row.project,
                job=row.job_id,
                task=row.id,
                attempt=str(row.uid),
            ),
            result=row.result,
            is_truncated=row.result_truncated,
            was_entered=row.was_entered,
            outputs=decoded(row.outputs) or [],
        )
        for row in found
    ]
