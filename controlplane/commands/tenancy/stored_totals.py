"""Check the totals of stored bytes of projects, and repair wrong ones."""

from datetime import datetime

from django.db import transaction

from controlplane.commands.audit import Action, AuditEntry, record
from controlplane.commands.state.cursors import count_repairs
from controlplane.domain.integrity import InvariantViolation, find_violations
from controlplane.queries.integrity.invariants import load_wrong_totals
from controlplane.queries.sql import execute

WALK = "stored_totals"

# Projects that one transaction repairs.
PAGE = 100


def recount_totals(
    *, repair: bool, by_command: bool = False, now: datetime
) -> list[InvariantViolation]:
    """Return all wrong totals; with `repair`, those of at most `PAGE` projects, repaired."""
    found = find_violations(load_wrong_totals(limit=PAGE if repair else None))
    if not repair or not found:
        return found
    with transaction.atomic():
        ids = [item.row_id for item in found]
        # The count of new sizes waits for these rows, so the sums do not change below.
        execute(_CREATE, {"ids": ids})
        execute(_LOCK, {"ids": ids})
        found = find_violations(load_wrong_totals(ids))
        execute(_REPAIR, {"ids": [item.row_id for item in found]})
        if by_command:  # those of convergence have alerts
            action = Action.REPAIR_PROJECT
            lines = [
                AuditEntry(action, str(item.row), str(item), project_id=item.row_id)
                for item in found
            ]
            record(*lines, now=now)
        elif found:
            count_repairs(WALK, {"totals_repaired": len(found)}, now=now)
    return found


_CREATE = """
INSERT INTO controlplane_storedtotal (project_id, total_bytes)
SELECT id, 0 FROM unnest(%(ids)s::bigint[]) AS wrong (id) ON CONFLICT DO NOTHING
"""
_LOCK = """
SELECT FROM controlplane_storedtotal WHERE project_id = ANY(%(ids)s) ORDER BY project_id FOR UPDATE
"""
_REPAIR = """
UPDATE controlplane_storedtotal t SET total_bytes = coalesce((
    SELECT sum(s.counted_bytes) FROM controlplane_storedsize s WHERE s.project_id = t.project_id
), 0)
WHERE t.project_id = ANY(%(ids)s)
"""
