"""Reservations: of identical tasks of serializing groups only one runs at a time.

A task takes the reservation of its key in the transaction that places it. The others wait, first
come, first served, without being placed.

Tasks are found in sub-selects that PostgreSQL computes once, see decision 88.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

from controlplane.commands.state.transactions import run_in_transaction
from controlplane.contract.states import TaskState as S
from controlplane.domain.cache.policy import CacheStatus as C
from controlplane.domain.state.effects import Placement
from controlplane.outbox import wakes
from controlplane.queries.cache.due import IS_HELD, WAITERS
from controlplane.queries.sql import execute, rows

PAGE = 500
# A transaction that stores results locks no more tasks than these.
MAX_FOUND = 2_000

# The conflict locks the row, so that the next statement sees its owner as it is now. A single
# statement would judge the owner by a snapshot taken before the lock.
_LOCK = """
INSERT INTO controlplane_cachereservation AS r (identity, task_id, attempt_uid, reserved_at)
SELECT DISTINCT ON (i.identity) i.identity, i.task, i.uid, %(now)s
FROM unnest(%(identity)s::uuid[], %(task)s::bigint[], %(uid)s::uuid[])
     WITH ORDINALITY AS i(identity, task, uid, n)
ORDER BY i.identity, i.n
ON CONFLICT (identity) DO UPDATE SET identity = r.identity
RETURNING task_id, attempt_uid
"""
_TAKE = f"""
WITH i AS MATERIALIZED (
    SELECT DISTINCT ON (identity) identity, task, uid
    FROM unnest(%(identity)s::uuid[], %(task)s::bigint[], %(uid)s::uuid[])
         WITH ORDINALITY AS n(identity, task, uid, n) ORDER BY identity, n
)
UPDATE controlplane_cachereservation c
SET task_id = i.task, attempt_uid = i.uid, reserved_at = %(now)s FROM i
WHERE c.identity = i.identity AND NOT {IS_HELD.format(identity="c.identity")}
RETURNING c.task_id, c.attempt_uid
"""
_LOSE = f"""
UPDATE controlplane_task SET cache_status = {C.WAITING:d}, cache_blocked = true
WHERE id = ANY(%s) AND state = {S.PENDING:d} AND cache_status <> {C.LOOKUP:d}
"""


# Tasks that may still be placed, such as one that backs off while another got the key. Placement
# would evict others for them. One whose lookup failed waits like a miss from then on, and is looked
# up again if there is an entry.
_YIELD = f"""
WITH found AS MATERIALIZED (
    SELECT t.id FROM controlplane_task t JOIN controlplane_taskgroup g ON g.id = t.group_id
    WHERE t.cache_identity = ANY(%(identities)s::uuid[]) AND t.id <> ALL(%(owners)s::bigint[])
      AND t.state = {S.PENDING:d} AND t.cache_status IN ({C.MISS:d}, {C.LOOKUP_FAILURE:d})
      AND (g.cache ->> 'serialize')::boolean
    ORDER BY t.id FOR NO KEY UPDATE OF t SKIP LOCKED
)
UPDATE controlplane_task t SET cache_status = {C.WAITING:d}, cache_blocked = true
WHERE t.id = ANY(ARRAY(SELECT id FROM found))
"""


def reserve(
    placements: Sequence[Placement], identities: Mapping[int, UUID], *, now: datetime
) -> list[Placement]:
    """Return the placements whose key is free, and reserve it; the other tasks of the key wait.

    `identities`: of the serializing tasks among them, by task. The caller holds the locks of their
    jobs.
    """
    wanted = [item for item in placements if item.task_id in identities]
    if not wanted:
        return list(placements)
    parameters = {
        "identity": [identities[item.task_id] for item in wanted],
        "task": [item.task_id for item in wanted],
        "uid": [item.uid for item in wanted],
        "now": now,
    }
    owners = {*rows(_LOCK, parameters), *rows(_TAKE, parameters)}
    losers = {item.task_id for item in wanted if (item.task_id, item.uid) not in owners}
    if losers:
        execute(_LOSE, [sorted(losers)])
    placed = sorted({item.task_id for item in wanted} - losers)
    if placed:
        taken = [identities[task_id] for task_id in placed]
        execute(_YIELD, {"identities": taken, "owners": placed})
    return [item for item in placements if item.task_id not in losers]


# Rows that another transaction has locked are skipped; the next tick finds waiters among them.
_FIND = f"""
WITH keys AS MATERIALIZED ({{keys}}), found AS MATERIALIZED (
    SELECT t.id FROM keys
    JOIN controlplane_task t ON t.cache_identity = keys.cache_identity
    JOIN controlplane_taskgroup g ON g.id = t.group_id
    WHERE t.state = {S.PENDING:d} AND t.cache_status IN ({C.WAITING:d}, {C.MISS:d})
      AND NOT t.attempt_open AND NOT (g.cache ->> 'overwrite')::boolean
      AND EXISTS (SELECT FROM controlplane_cacheentry e
                  WHERE e.identity = t.cache_identity AND e.evicted_at IS NULL)
    ORDER BY t.id LIMIT {MAX_FOUND} FOR NO KEY UPDATE OF t SKIP LOCKED
)
UPDATE controlplane_task t SET cache_status = {C.LOOKUP:d}, cache_blocked = true
WHERE t.id = ANY(ARRAY(SELECT id FROM found))
"""
_FIND_STORED = _FIND.format(keys="SELECT unnest(%(identities)s::uuid[]) AS cache_identity")
_FIND_WAITERS = _FIND.format(keys=f"SELECT w.cache_identity {WAITERS}")

# The last owner comes first, if it waits again. Each shape of each pool has a candidate: one that
# fits into no cell must not hold up the others.
_GRANT = f"""
WITH keys AS MATERIALIZED (SELECT w.cache_identity {WAITERS}), first AS MATERIALIZED (
    SELECT DISTINCT ON (t.cache_identity, j.pool_id, t.shape_id) t.id
    FROM keys JOIN controlplane_task t ON t.cache_identity = keys.cache_identity
    JOIN controlplane_taskgroup g ON g.id = t.group_id
    JOIN controlplane_job j ON j.id = t.job_id
    LEFT JOIN controlplane_cachereservation r ON r.identity = t.cache_identity
    WHERE t.state = {S.PENDING:d} AND NOT t.attempt_open AND j.ending_as IS NULL
      AND (t.not_before IS NULL OR t.not_before <= %(now)s)
      AND (g.cache ->> 'serialize')::boolean AND t.cache_status <> {C.LOOKUP:d}
    ORDER BY t.cache_identity, j.pool_id, t.shape_id,
             (r.task_id IS NOT DISTINCT FROM t.id) DESC, t.id
), found AS MATERIALIZED (
    SELECT t.id FROM controlplane_task t JOIN first ON first.id = t.id
    WHERE t.cache_blocked
    ORDER BY t.id FOR NO KEY UPDATE OF t SKIP LOCKED
)
UPDATE controlplane_task t
SET cache_status = CASE t.cache_status WHEN {C.WAITING:d} THEN {C.MISS:d} ELSE t.cache_status END,
    cache_blocked = false
WHERE t.id = ANY(ARRAY(SELECT id FROM found))
"""


def search_again(identities: Sequence[UUID]) -> int:
    """Let pending tasks of keys that have an entry be looked up; return how many.

    `pass_on` finds waiting tasks beyond MAX_FOUND.
    """
    return execute(_FIND_STORED, {"identities": list(identities)})


def pass_on(*, now: datetime) -> Mapping[str, int]:
    """Look up waiters whose key has an entry, and let the first waiter of each free key run."""
    parameters = {"now": now}
    found = run_in_transaction(lambda: execute(_FIND_WAITERS, parameters))
    granted = run_in_transaction(lambda: execute(_GRANT, parameters))
    if found == MAX_FOUND:
        wakes.wake_convergence()
    if granted:
        wakes.wake_placement()
    return {"cache_found": found, "cache_granted": granted}


def forget_reservations(*, now: datetime, is_over: Callable[[], bool]) -> int:
    """Delete reservations that ended at least a day ago, until `is_over()`; return how many."""
    done = 0
    while not is_over():
        deleted = execute(_FORGET, {"now": now, "page": PAGE})
        done += deleted
        if deleted < PAGE:
            break
    return done


# A placement that takes the reservation meanwhile changes its time, so the row stays.
_FORGET = f"""
DELETE FROM controlplane_cachereservation c
WHERE c.reserved_at < %(now)s - interval '1 day' AND c.identity = ANY(ARRAY(
    SELECT c.identity FROM controlplane_cachereservation c
    WHERE c.reserved_at < %(now)s - interval '1 day' AND NOT {IS_HELD.format(identity="c.identity")}
    LIMIT %(page)s))
"""
