"""Send messages: claim before the try, record its result after it, so that none is lost."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID, uuid4

import structlog

from controlplane.commands.state.apply import apply
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.domain.notifications.matching import FAILING
from controlplane.domain.notifications.messages import (
    CLAIM_SECONDS,
    FAILING_TRIES,
    Message,
    wait_seconds,
)
from controlplane.domain.state.effects import ClearAlert, Effects, RaiseAlert
from controlplane.queries.notifications import open_url
from controlplane.queries.sql import Row, execute, named_rows
from controlplane.queries.tenancy.secrets import SealedOtherwise
from controlplane.queries.ticks import try_lock

log = structlog.get_logger(__name__)

_LOCK = zlib.crc32(b"cellrun notification claims")

# One try at a time to each address: that of its message that is due first. An expired claim is of
# a process that has died; its try counts.
_CLAIM = """
WITH chosen AS MATERIALIZED (
    SELECT m.id FROM controlplane_notificationaddress a, LATERAL (
        SELECT id FROM controlplane_notificationmessage
        WHERE address_id = a.id AND ended_at IS NULL AND due_at <= %(now)s
          AND (state = 'waiting' OR claimed_until <= %(now)s)
        ORDER BY due_at, id LIMIT 1) m
    WHERE NOT EXISTS (
        SELECT 1 FROM controlplane_notificationmessage
        WHERE address_id = a.id AND ended_at IS NULL AND state = 'claimed'
          AND claimed_until > %(now)s)
)
UPDATE controlplane_notificationmessage m SET state = 'claimed', claim = %(claim)s,
       claimed_until = %(now)s + make_interval(secs => %(seconds)s), tries = m.tries + 1
FROM chosen JOIN controlplane_notificationmessage o ON o.id = chosen.id
     JOIN controlplane_notificationaddress a ON a.id = o.address_id
WHERE m.id = chosen.id
RETURNING m.id, a.name, a.sealed, m.title, m.body, m.tries, m.give_up_at, m.claim, m.is_test
"""

# The last try ended with its process, which recorded no result. A first one is always repeated.
_ABANDON = """
UPDATE controlplane_notificationmessage m SET state = 'abandoned', claim = NULL,
       claimed_until = NULL, ended_at = %(now)s, last_error = %(error)s
FROM controlplane_notificationaddress a
WHERE a.id = m.address_id AND m.ended_at IS NULL AND m.state = 'claimed'
  AND m.claimed_until <= %(now)s AND m.give_up_at < %(now)s AND m.tries > 1
RETURNING a.name, m.tries, m.is_test
"""
_DIED = "the process of the last try ended before the try"

_RECORD = """
UPDATE controlplane_notificationmessage SET state = %(state)s, claim = NULL, claimed_until = NULL,
       due_at = %(due_at)s, last_error = %(error)s,
       ended_at = CASE WHEN %(state)s <> 'waiting' THEN %(now)s::timestamptz END
WHERE id = %(id)s AND state = 'claimed' AND claim = %(claim)s
"""


@dataclass(frozen=True, slots=True)
class ClaimedMessage:
    """A message that this process sends. `url`: None if it cannot be opened, with `fault`."""

    message_id: int
    address: str
    url: str | None = field(repr=False)
    message: Message
    number: int
    give_up_at: datetime
    claim: UUID
    is_test: bool
    fault: str = ""


def claim_messages(*, now: datetime) -> Sequence[ClaimedMessage]:
    """Claim the due message of each address that has no try in progress; abandon expired ones."""

    def claim() -> list[ClaimedMessage]:
        if not try_lock(_LOCK):  # two processes could claim two messages of one address
            return []
        lost = named_rows(_ABANDON, {"now": now, "error": _DIED})
        texts = {row.name: _failed(row.tries, _DIED) for row in lost if not row.is_test}
        apply(Effects(alerts=[RaiseAlert(FAILING, *it) for it in texts.items()]), now=now)
        parameters = {"now": now, "claim": uuid4(), "seconds": CLAIM_SECONDS}
        return [_opened(row) for row in named_rows(_CLAIM, parameters)]

    return run_in_transaction(claim)


def _opened(row: Row) -> ClaimedMessage:
    url, fault = None, ""
    try:
        url = open_url(row.name, bytes(row.sealed))
    except SealedOtherwise as error:
        fault = str(error)
    return ClaimedMessage(
        message_id=row.id,
        address=row.name,
        url=url,
        message=Message(row.title, row.body),
        number=row.tries,
        give_up_at=row.give_up_at,
        claim=row.claim,
        is_test=row.is_test,
        fault=fault,
    )


def record_try(item: ClaimedMessage, error: str, *, now: datetime) -> str:
    """Record the result of a try, and raise or close the alert; return the new state.

    A message that another process has claimed since does not change: return "".
    """
    wait = wait_seconds(item.number, message_id=item.message_id)
    due_at = now + timedelta(seconds=wait)
    state = "delivered"
    if error:
        state = "abandoned" if due_at > item.give_up_at else "waiting"

    def write() -> bool:
        parameters = {
            "id": item.message_id,
            "claim": item.claim,
            "state": state,
            "due_at": due_at,
            "error": error,
            "now": now,
        }
        if not execute(_RECORD, parameters):
            return False
        if not error:
            apply(Effects(cleared=[ClearAlert(FAILING, item.address)]), now=now)
        elif not item.is_test and (item.number >= FAILING_TRIES or state == "abandoned"):
            text = _failed(item.number, error)
            apply(Effects(alerts=[RaiseAlert(FAILING, item.address, text)]), now=now)
        return True

    is_written = run_in_transaction(write)
    log.info(
        "notification_tried",
        message=item.message_id,
        address=item.address,
        number=item.number,
        error=error,
        became=state if is_written else None,
    )
    return state if is_written else ""


def _failed(tries: int, error: str) -> str:
    return f"{tries} tries of a message failed: {error}"
