"""Quarantine cells that flood the inbox or Redis, and raise alerts."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from django.db import transaction

from controlplane.commands.state.apply import apply
from controlplane.domain.cells.health import decide_flooding
from controlplane.domain.state.effects import Effects, RaiseAlert
from controlplane.queries.cells.keys import find_keys

QUARANTINE_SECONDS = 60
"""Duration of a quarantine after the last flood."""

DROPPED = "inbox_dropped"


def quarantine_flooding(flooding: Mapping[tuple[int, str], int], *, now: datetime) -> None:
    """Quarantine cells that flood the inbox, and raise an alert for each.

    `flooding`: messages in the last window, by cell id and name.
    """
    _quarantine(
        {
            cell: f"it floods the control plane: up to {messages} messages in 5 s"
            for cell, messages in flooding.items()
        },
        until=now + timedelta(seconds=QUARANTINE_SECONDS),
        now=now,
    )


def quarantine_closed(name: str, reason: str, *, seconds: int, now: datetime) -> None:
    """Quarantine a cell whose logins at Redis are closed, until they open again."""
    text = f"{reason}; its logins at Redis are closed for {seconds} s"
    reasons = {(cell_id, found): text for found, (cell_id, _) in find_keys([name]).items()}
    _quarantine(reasons, until=now + timedelta(seconds=seconds), now=now)


def alert_dropped(shard: str, *, messages: int, size_bytes: int, now: datetime) -> None:
    """Raise an alert about messages that the shard could not hold."""
    text = (
        f"the newest {messages} messages ({size_bytes >> 20} MiB) of {shard} were dropped, because"
        " it was full; cells send their reports again"
    )
    apply(Effects(alerts=[RaiseAlert(DROPPED, shard, text)]), now=now)


def _quarantine(reasons: Mapping[tuple[int, str], str], *, until: datetime, now: datetime) -> None:
    with transaction.atomic():
        apply(decide_flooding(reasons, until=until), now=now)
