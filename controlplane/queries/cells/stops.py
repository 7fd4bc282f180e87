"""Load stop orders for ended attempts whose containers may still run."""

from collections.abc import Iterable
from uuid import UUID

from controlplane.contract.messages.orders import StopAttempt
from controlplane.queries.sql import rows


def load_stops(uids: Iterable[UUID]) -> dict[int, list[StopAttempt]]:
    """Return stop orders for the ended, unreleased attempts among `uids`, by cell."""
    found = rows(
        """
        SELECT a.cell_id, a.uid, a.stop_reason, a.stop_forced_at IS NOT NULL,
               g.launch->>'stop_grace_seconds'
        FROM controlplane_attempt a JOIN controlplane_taskgroup g ON g.id = a.group_id
        WHERE a.uid = ANY(%s) AND a.finished_at IS NOT NULL AND a.released_at IS NULL
        ORDER BY a.cell_id, a.uid
        """,
        [list(uids)],
    )
    stops: dict[int, list[StopAttempt]] = {}
    for cell_id, uid, reason, force, grace in found:
        stop = StopAttempt(str(uid), reason or "stopped", float(grace or 10.0), force)
        stops.setdefault(cell_id, []).append(stop)
    return stops
