"""Puts cells aside that flood the inbox."""

from collections.abc import Mapping
from datetime import datetime

from django.db import transaction

from controlplane.commands.state.apply import change_cells, raise_alerts
from controlplane.domain.cells.health import decide_flooding


def quarantine_flooding(flooding: Mapping[tuple[int, str], int], *, now: datetime) -> None:
    """Quarantine cells and raise an alert for each.

    `flooding`: by cell id and name, the number of its messages in the last window. A quarantine
    that a cell is in for flooding already is extended.
    """
    effects = decide_flooding(flooding, now=now)
    with transaction.atomic():
        change_cells(effects.cells)
        raise_alerts(effects.alerts, now=now)
