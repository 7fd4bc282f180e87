"""Deliver callbacks: claim before the try and record its result after it, so that none is lost."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import structlog
from django.conf import settings
from django.db import transaction

from controlplane.commands.audit import Action, AuditEntry, record
from controlplane.commands.jobs.one_offs import claim_tasks, delete_resolved_task, release_claim
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.domain.callbacks import delivery as domain
from controlplane.domain.errors import Conflict, NotFound
from controlplane.outbox import wakes
from controlplane.queries.callbacks.callbacks import (
    Receivers,
    find_receivers,
    is_any_due,
    load_subjects,
)
from controlplane.queries.locks import find_free_jobs, lock_jobs
from controlplane.queries.sql import execute, rows
from controlplane.queries.ticks import try_lock

log = structlog.get_logger(__name__)

ACTOR = "callback"
_LOCK = zlib.crc32(b"cellrun callbacks")

# Limits of concurrent tries: to one host, of one owner, and in all. Owners, and each owner's hosts,
# take turns by fewest tries in progress, so that receivers that hang delay no others.
_CLAIM = """
WITH busy AS MATERIALIZED (
    SELECT owner_id, host, count(*) AS n FROM controlplane_callback
    WHERE state = 'claimed' AND claimed_until > %(now)s GROUP BY owner_id, host
), busy_hosts AS (SELECT host, sum(n) AS n FROM busy GROUP BY host
), busy_owners AS (SELECT owner_id, sum(n) AS n FROM busy GROUP BY owner_id
), due AS (
    SELECT d.id, d.due_at, a.owner_id, a.host, COALESCE(h.n, 0) AS busy_of_host,
           COALESCE(b.n, 0) + row_number() OVER (
               PARTITION BY a.owner_id, a.host ORDER BY d.due_at, d.id) AS turn
    FROM unnest(%(owners)s::bigint[], %(hosts)s::text[]) AS a(owner_id, host)
    LEFT JOIN busy b ON b.owner_id = a.owner_id AND b.host = a.host
    LEFT JOIN busy_hosts h ON h.host = a.host, LATERAL (
        SELECT id, due_at FROM controlplane_callback k
        WHERE k.state = 'waiting' AND k.owner_id = a.owner_id AND k.host = a.host
          AND k.due_at <= %(now)s
        ORDER BY k.due_at, k.id LIMIT GREATEST(%(per_host)s - COALESCE(h.n, 0), 0)
    ) d
), at_host AS (
    SELECT *, busy_of_host + row_number() OVER (
               PARTITION BY host ORDER BY turn, due_at, id) AS place
    FROM due
), of_owner AS (
    SELECT d.*, COALESCE(b.n, 0) + row_number() OVER (
               PARTITION BY d.owner_id ORDER BY d.turn, d.due_at, d.id) AS of_owner
    FROM at_host d LEFT JOIN busy_owners b ON b.owner_id = d.owner_id
    WHERE d.place <= %(per_host)s
), chosen AS MATERIALIZED (
    SELECT id FROM of_owner WHERE of_owner <= %(per_owner)s ORDER BY of_owner, due_at, id
    LIMIT GREATEST(%(at_once)s - (SELECT COALESCE(sum(n), 0) FROM busy), 0)
), held AS MATERIALIZED (
    SELECT id FROM controlplane_callback
    WHERE id IN (SELECT id FROM chosen) AND state = 'waiting'
    ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE controlplane_callback k SET state = 'claimed', claim = %(claim)s,
       claimed_until = %(now)s + make_interval(secs => %(seconds)s), tries = k.tries + 1
FROM held JOIN controlplane_callback o ON o.id = held.id
     JOIN controlplane_job j ON j.id = o.job_id
WHERE k.id = held.id
RETURNING k.id, k.job_id, k.task_id, k.url, k.tries, k.give_up_at, k.owner_id, j.is_one_off,
          k.claim, %(now)s::timestamptz
"""


@dataclass(frozen=True, slots=True)
class ClaimedCallback:
    """A callback that this process delivers. `task_claim`: of its one-off task, if it has one."""

    callback_id: int
    job_id: int
    task_id: int | None
    url: str
    number: int
    give_up_at: datetime
    owner_id: int
    is_one_off: bool
    claim: UUID
    claimed_at: datetime
    body: bytes = field(default=b"", repr=False)
    task_claim: UUID | None = None

    def release_task(self, *, now: datetime) -> None:
        """Turn the one-off task that was claimed for the callback back into COMPLETED."""
        if self.task_claim is not None and self.task_id is not None:
            release_claim(task_id=self.task_id, claim=self.task_claim, now=now)


@dataclass(frozen=True, slots=True)
class DeliveryAttempt:
    """The result of a try. `status`: of the response, if any. `error`: empty after a success.

    `is_cut_short`: the process stopped, so the receiver's response is unknown. `is_begun`: False if
    not even the name was resolved, which is not a failure of the receiver.
    """

    began_at: datetime
    ended_at: datetime
    status: int | None
    error: str
    is_cut_short: bool = False
    is_begun: bool = True


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """The consequence of a try. `again_seconds`: until the next try; None if there is none.

    `is_resolved`: False if the one-off task is still to be deleted (`resolve_delivered`).
    """

    again_seconds: float | None = None
    is_resolved: bool = True


@dataclass(frozen=True, slots=True)
class ClaimBatch:
    """The claimed callbacks. `retry_seconds`: until a postponed callback is due.

    `left_off`: passed to the next claim, so that receivers take turns.
    """

    items: Sequence[ClaimedCallback] = ()
    retry_seconds: float | None = None
    left_off: str = ""


def claim_callbacks(*, now: datetime, left_off: str = "") -> ClaimBatch:
    """Claim due callbacks within the limits for 30 s.

    The one-off task of a claimed callback becomes RESOLVING (Diego). A callback whose task another
    client resolves is postponed. After an error the claims are released.
    """
    if not is_any_due(now):
        return ClaimBatch()
    receivers = find_receivers(now, behind=left_off)

    def claim() -> list[ClaimedCallback] | None:
        # Two processes that count tries in progress concurrently could exceed the limits together.
        is_ours = not settings.CELLRUN.advisory_locks or try_lock(_LOCK)
        return _claim(receivers, now) if is_ours else None

    found = run_in_transaction(claim)
    if found is None:
        return ClaimBatch((), domain.POSTPONED_SECONDS, left_off)
    try:
        ours = _with_task_claims(_with_bodies(found), now)
    except Exception:
        _postpone(found, [""] * len(found), now)
        raise
    again = domain.POSTPONED_SECONDS if len(ours) < len(found) else None
    return ClaimBatch(ours, again, receivers.left_off)


def _claim(receivers: Receivers, now: datetime) -> list[ClaimedCallback]:
    at_once = settings.CELLRUN.callbacks_at_once
    parameters = {
        "now": now,
        "owners": receivers.owner_ids,
        "hosts": receivers.hosts,
        "claim": uuid4(),
        "seconds": domain.CLAIM_SECONDS,
        "per_host": settings.CELLRUN.callbacks_per_host,
        "per_owner": max(1, at_once // 2),
        "at_once": at_once,
    }
    # RETURNING has the order of the plan.
    return [ClaimedCallback(*row) for row in sorted(rows(_CLAIM, parameters))]


def _with_bodies(found: Sequence[ClaimedCallback]) -> list[ClaimedCallback]:
    """Return the callbacks with their bodies, without deleted ones."""
    if not found:
        return []
    subjects = load_subjects([item.callback_id for item in found])
    bodies: dict[int, dict[str, Any]] = {
        key: domain.task_body(task) for key, task in subjects.tasks.items()
    }
    bodies |= {key: domain.job_body(job) for key, job in subjects.jobs.items()}
    return [
        replace(item, body=domain.encode(bodies[item.callback_id]))
        for item in found
        if item.callback_id in bodies
    ]


def _with_task_claims(found: Sequence[ClaimedCallback], now: datetime) -> list[ClaimedCallback]:
    """Claim the one-off tasks of callbacks, in a transaction after that of the callbacks' locks.

    Postpone the callbacks whose tasks cannot be claimed, and return the others.
    """
    wanted = [item.task_id for item in found if item.is_one_off and item.task_id is not None]
    claimed = claim_tasks(task_ids=wanted, by=ACTOR, now=now)
    others = [item for item in found if item.task_id in claimed.refusals]
    later = now + timedelta(seconds=domain.POSTPONED_SECONDS)
    _postpone(others, [claimed.refusals[item.task_id or 0] for item in others], later)
    return [
        replace(item, task_claim=claimed.claims.get(item.task_id or 0))
        for item in found
        if item.task_id not in claimed.refusals
    ]


def _postpone(items: Sequence[ClaimedCallback], reasons: Sequence[str], due_at: datetime) -> None:
    """Undo the claims, with another due time; an empty reason is not recorded."""
    if not items:
        return
    execute(
        """
        WITH held AS MATERIALIZED (
            SELECT k.id, i.why
            FROM unnest(%(ids)s::bigint[], %(why)s::text[]) AS i(id, why)
            JOIN controlplane_callback k ON k.id = i.id
            WHERE k.state = 'claimed' AND k.claim = %(claim)s
            ORDER BY k.id FOR NO KEY UPDATE OF k
        )
        UPDATE controlplane_callback k SET state = 'waiting', claim = NULL, claimed_until = NULL,
               tries = k.tries - 1, due_at = %(due_at)s,
               last_error = CASE WHEN held.why = '' THEN k.last_error ELSE held.why END
        FROM held WHERE k.id = held.id
        """,
        {
            "ids": [item.callback_id for item in items],
            "why": [domain.one_line(why) for why in reasons],
            "claim": items[0].claim,
            "due_at": due_at,
        },
    )


def give_back(item: ClaimedCallback, *, now: datetime) -> None:
    """Release a claim without a try; skip a callback that another process has claimed since."""
    _postpone([item], [""], now)
    item.release_task(now=now)


def record_try(item: ClaimedCallback, tried: DeliveryAttempt) -> DeliveryResult:
    """Record the result of a try.

    A callback that another process has claimed since, or that was deleted, does not change; the try
    is recorded. Raise OperationalError if another transaction has the callback locked.
    """
    if domain.is_delivered(tried.status):
        return DeliveryResult(is_resolved=run_in_transaction(lambda: _record_delivery(item, tried)))
    wait = domain.wait_seconds(item.number, callback_id=item.callback_id)
    if tried.is_cut_short:
        wait = 0.0
    due_at = tried.ended_at + timedelta(seconds=wait)
    is_over = due_at > item.give_up_at
    _write(item, tried, "abandoned" if is_over else "waiting", due_at)
    item.release_task(now=tried.ended_at)
    return DeliveryResult(None if is_over else wait)


def _record_delivery(item: ClaimedCallback, tried: DeliveryAttempt) -> bool:
    """Record a delivery and delete its one-off task (Diego); return whether the task is deleted.

    Return False if another transaction has its job locked: waiting would delay this and all other
    records, since one connection writes them all.
    """
    if item.task_claim is None or item.task_id is None:
        _write(item, tried, "delivered", tried.ended_at)
        return True
    is_free = bool(find_free_jobs([item.job_id]))  # lock the job first, as a deletion does
    _write(item, tried, "delivered", tried.ended_at)
    if is_free:
        _delete_task(item, item.task_id, tried.ended_at)
    return is_free


def resolve_delivered(item: ClaimedCallback, *, now: datetime) -> bool:
    """Delete the one-off task of a delivered callback; return False while its job is locked.

    If the claim expires first, the task is deleted two minutes after its end, like any other.
    """

    def resolve() -> bool:
        if item.task_id is not None and find_free_jobs([item.job_id]):
            _delete_task(item, item.task_id, now)
            return True
        held = "SELECT 1 FROM controlplane_oneoff WHERE task_id = %s AND claim = %s"
        return not rows(held, [item.task_id, item.task_claim])

    return run_in_transaction(resolve)


def _delete_task(item: ClaimedCallback, task_id: int, now: datetime) -> None:
    try:
        with transaction.atomic():
            delete_resolved_task(
                task_id=task_id,
                claim=item.task_claim,
                actor=ACTOR,
                why="its callback was delivered",
                now=now,
            )
    except (Conflict, NotFound) as error:
        log.info("task_not_resolved", task=task_id, why=str(error))


def _write(item: ClaimedCallback, tried: DeliveryAttempt, state: str, due_at: datetime) -> None:
    """Write the result of a try. Raise OperationalError if the callback is locked."""
    written = execute(
        """
        WITH held AS MATERIALIZED (
            SELECT id FROM controlplane_callback WHERE id = %(id)s FOR NO KEY UPDATE NOWAIT
        ), noted AS (
            INSERT INTO controlplane_delivery
                (callback_id, number, began_at, ended_at, status, error)
            SELECT id, %(number)s, %(began_at)s, %(ended_at)s, %(status)s, %(error)s FROM held
        )
        UPDATE controlplane_callback k SET state = %(state)s, claim = NULL, claimed_until = NULL,
               due_at = %(due_at)s, last_error = %(error)s, is_tried = is_tried OR %(is_tried)s,
               tries = tries - %(untried)s,
               ended_at = CASE WHEN %(state)s <> 'waiting' THEN %(ended_at)s::timestamptz END
        FROM held WHERE k.id = held.id AND state = 'claimed' AND claim = %(claim)s
        """,
        {
            "id": item.callback_id,
            "claim": item.claim,
            "number": item.number,
            "began_at": tried.began_at,
            "ended_at": tried.ended_at,
            "status": tried.status,
            "error": domain.one_line(tried.error),
            "state": state,
            "due_at": due_at,
            "is_tried": tried.is_begun and not tried.is_cut_short,
            "untried": int(tried.is_cut_short),
        },
    )
    log.info(
        "callback_tried",
        callback=item.callback_id,
        job=item.job_id,
        task=item.task_id,
        number=item.number,
        status=tried.status,
        error=tried.error,
        became=state
        if written
        else None,  # otherwise another process has claimed it since, or it has ended
    )


def repeat_callback(*, callback_id: int, actor: str, now: datetime) -> None:
    """Make a callback in any state due now, with retries for another day.

    Raise NotFound; Conflict if a try is in progress.
    """

    def repeat() -> None:
        job_ids = rows("SELECT job_id FROM controlplane_callback WHERE id = %s", [callback_id])
        # Lock the job first, as a deletion does: the callbacks of a deleted job stay abandoned.
        lock_jobs([job_id for (job_id,) in job_ids])
        found = rows(
            """
            SELECT k.state, k.host, k.job_id FROM controlplane_callback k
            JOIN controlplane_job j ON j.id = k.job_id AND j.deleted_at IS NULL
            WHERE k.id = %s FOR NO KEY UPDATE OF k
            """,
            [callback_id],
        )
        if not found:
            raise NotFound(f"there is no callback {callback_id}")
        state, host, job_id = found[0]
        if state == "claimed":
            raise Conflict(f"callback {callback_id} is being tried now")
        execute(
            """
            UPDATE controlplane_callback SET state = 'waiting', ended_at = NULL, due_at = %s,
                   give_up_at = %s WHERE id = %s
            """,
            [now, now + domain.GIVE_UP_AFTER, callback_id],
        )
        # The host only: the URL may contain credentials.
        text = f"was {state}, of job {job_id}, to {host}"
        subject = f"callback {callback_id}"
        entry = AuditEntry(Action.REPEAT_CALLBACK, subject, text, job_id=job_id)
        record(entry, actor=actor, now=now)
        transaction.on_commit(wakes.wake_callbacks, robust=True)

    run_in_transaction(repeat)
    log.info("callback_repeated", callback=callback_id, by=actor)
