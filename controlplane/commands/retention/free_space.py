"""Watch the free space of the store."""

from datetime import datetime

from controlplane.commands.state.tick_alerts import TickAlerts
from controlplane.domain.state.effects import RaiseAlert
from controlplane.storage.current import current_store
from controlplane.storage.interface import StoreFull

FULL = "store_full"
_STORE = "artifact store"


def watch_free_space(alerts: TickAlerts, *, now: datetime) -> None:
    """Keep an alert open while the store has less free space than it keeps."""
    try:
        current_store().check_space()
    except StoreFull as error:
        alerts.raise_alert(
            RaiseAlert(FULL, _STORE, f"submissions and uploads are refused: {error}"), now=now
        )
    else:
        alerts.clear_alert(FULL, _STORE, now=now)
