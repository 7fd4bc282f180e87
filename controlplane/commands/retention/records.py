"""Records of what was are kept for their time: audit lines, runs of ticks, dead letters, alerts."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from controlplane.queries.sql import execute

PAGE = 500

_DELETIONS = (
    """
    DELETE FROM controlplane_auditline WHERE id = ANY(ARRAY(
        SELECT id FROM controlplane_auditline
        WHERE at <= %(now)s - make_interval(secs => %(audit_age)s) ORDER BY at LIMIT %(page)s))
    """,
    """
    DELETE FROM controlplane_tickrun WHERE id = ANY(ARRAY(
        SELECT id FROM controlplane_tickrun
        WHERE finished_at <= %(now)s - make_interval(secs => %(run_age)s)
        ORDER BY finished_at LIMIT %(page)s))
    """,
    """
    DELETE FROM controlplane_deadletter WHERE id = ANY(ARRAY(
        SELECT id FROM controlplane_deadletter
        WHERE at <= %(now)s - make_interval(secs => %(finding_age)s) ORDER BY id LIMIT %(page)s))
    """,
    """
    DELETE FROM controlplane_alert WHERE id = ANY(ARRAY(
        SELECT id FROM controlplane_alert
        WHERE cleared_at <= %(now)s - make_interval(secs => %(finding_age)s)
        ORDER BY id LIMIT %(page)s))
    """,
)


def delete_old_records(
    *, now: datetime, ages: dict[str, Any], is_over: Callable[[], bool]
) -> tuple[int, bool]:
    """Delete records older than `ages`, until time `is_over`; how many, and whether all."""
    deleted = 0
    parameters = {"now": now, "page": PAGE, **ages}
    for statement in _DELETIONS:
        page = PAGE
        while page == PAGE:
            if is_over():
                return deleted, False
            page = execute(statement, parameters)
            deleted += page
    return deleted, True
