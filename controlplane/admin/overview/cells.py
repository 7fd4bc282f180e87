"""Render cells for the overview, with bars of used, reserved and free resources."""

from datetime import datetime
from typing import Any

from controlplane.admin.badges import bare_amount, cell_badge, page_link
from controlplane.domain.state.states import CellState
from controlplane.queries.pages.cells import CellUse, Share, load_cell_uses

SHOWN_CELLS = 24
_NAMES = ("cpu_millis", "memory_mib", "gpu")


def cell_bars(now: datetime) -> list[dict[str, Any]]:
    """Return cells with bars, those that take no work first."""
    return [
        {
            "link": page_link("cell", cell.id, cell.name),
            "pool": cell.pool,
            "badge": cell_badge(cell.state),
            "reason": cell.reason if cell.state is not CellState.READY else "",
            "bars": [_bar(cell, share) for share in cell.shares if share.name in _NAMES],
        }
        for cell in load_cell_uses(SHOWN_CELLS, now=now)
    ]


def _bar(cell: CellUse, share: Share) -> dict[str, Any]:
    def shown(amount: int) -> str:
        return bare_amount(share.name, amount)

    parts = [f"{shown(share.used)} of {shown(share.capacity)} used"]
    if share.reserved:
        parts.append(f"{shown(share.reserved)} reserved")
    if cell.state is CellState.READY:
        parts.append(f"{shown(share.free)} free")
    return {
        "name": share.name.removesuffix("_millis").removesuffix("_mib"),
        "used": round(min(100, 100 * share.used / share.capacity), 2),
        "reserved": round(100 * share.reserved / share.capacity, 2),
        "text": ", ".join(parts),
    }
