"""Rules 10 and 12: release abandoned claims, end exec sessions, and clear quiet alerts."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from django.db import transaction

from controlplane.commands.attempts.exec_sessions import end_stale_sessions
from controlplane.commands.convergence.runner import RuleContext
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.domain.callbacks.delivery import CLAIM_SECONDS, wait_seconds
from controlplane.queries.convergence.due import QUIET_ALERTS
from controlplane.queries.sql import execute, rows


def close_quiet_alerts(context: RuleContext) -> Mapping[str, int]:
    """Clear alerts that were not raised again for the time in `domain.alerts`."""
    # Checked again under the lock: an alert that is raised meanwhile stays open.
    statement = f"""
        WITH quiet AS MATERIALIZED (
            SELECT a.id {QUIET_ALERTS} ORDER BY a.id FOR NO KEY UPDATE OF a
        )
        UPDATE controlplane_alert a SET cleared_at = %(now)s FROM quiet WHERE a.id = quiet.id
        """
    return {"alerts_closed": run_in_transaction(lambda: execute(statement, context.parameters))}


def end_exec_sessions(context: RuleContext) -> Mapping[str, int]:
    """End sessions in attempts without a claim, a client, a cell or an attempt."""
    return {"exec_sessions_ended": len(end_stale_sessions(context.parameters))}


LOST = "the result of the try was never recorded"


def release_claims(context: RuleContext) -> Mapping[str, int]:
    """Release expired claims of one-off tasks (Diego: 30 s) and of callbacks."""
    before = context.now - timedelta(seconds=context.policy.claim_seconds)
    resolving = execute(
        """
        WITH held AS MATERIALIZED (
            SELECT task_id FROM controlplane_oneoff
            WHERE claim IS NOT NULL AND claimed_at <= %s ORDER BY task_id FOR NO KEY UPDATE
        )
        UPDATE controlplane_oneoff o SET claim = NULL, claimed_at = NULL, claimed_by = '',
               claim_ended_at = claimed_at + %s
        FROM held WHERE o.task_id = held.task_id
        """,
        [before, context.now - before],
    )
    with transaction.atomic():
        lost = _fail_lost_tries(context.now)
    return {"claims_let_go": resolving, "tries_lost": lost}


def _fail_lost_tries(now: datetime) -> int:
    """Count tries without a recorded result as failed: schedule another, or give up."""
    held = rows(
        """
        SELECT id, tries, give_up_at FROM controlplane_callback
        WHERE state = 'claimed' AND claimed_until <= %s ORDER BY id FOR NO KEY UPDATE
        """,
        [now],
    )
    if not held:
        return 0
    waits = [wait_seconds(tries, callback_id=number) for number, tries, _ in held]
    due_at = [now + timedelta(seconds=wait) for wait in waits]
    is_over = [due > give_up_at for due, (*_, give_up_at) in zip(due_at, held, strict=True)]
    execute(
        """
        WITH lost AS (
            SELECT * FROM unnest(%(ids)s::bigint[], %(due_at)s::timestamptz[], %(is_over)s::bool[])
            AS l(id, due_at, is_over)
        ), noted AS (
            INSERT INTO controlplane_delivery (callback_id, number, began_at, ended_at, error)
            SELECT k.id, k.tries, k.claimed_until - make_interval(secs => %(claim)s), %(now)s,
                   %(error)s
            FROM lost JOIN controlplane_callback k ON k.id = lost.id
        )
        UPDATE controlplane_callback k
        SET state = CASE WHEN lost.is_over THEN 'abandoned' ELSE 'waiting' END, claim = NULL,
            claimed_until = NULL, due_at = lost.due_at, last_error = %(error)s,
            ended_at = CASE WHEN lost.is_over THEN %(now)s::timestamptz END
        FROM lost WHERE k.id = lost.id
        """,
        {
            "ids": [number for number, *_ in held],
            "due_at": due_at,
            "is_over": is_over,
            "now": now,
            "claim": CLAIM_SECONDS,
            "error": LOST,
        },
    )
    return len(held)
