"""Send orders for new attempts after the commit; Sync repeats lost ones."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import structlog

from controlplane import clock
from controlplane.commands.state.apply import apply
from controlplane.contract.messages.orders import RunAttempt
from controlplane.domain.cells.keys import CellAddress
from controlplane.domain.cells.sync import GrownSpec
from controlplane.domain.state.effects import Effects, Placement, RaiseAlert
from controlplane.outbox import cells
from controlplane.queries.attempts.group_specs import load_group_specs
from controlplane.queries.cells.keys import load_addresses

UNREADABLE = "shape_unreadable"

log = structlog.get_logger(__name__)


def send_runs(placements: Sequence[Placement], *, start_before: datetime) -> None:
    """Send each cell its run orders, except unreadable ones."""
    addresses = load_addresses({item.cell_id for item in placements})
    grown = {
        item.uid: GrownSpec(item.group_id, item.resources) for item in placements if item.resources
    }
    specs = load_group_specs({item.group_id for item in placements}, grown.values())
    by_cell: dict[int, list[RunAttempt]] = defaultdict(list)
    for item in placements:
        order = RunAttempt(
            uid=str(item.uid),
            spec_id=grown[item.uid].spec_id if item.uid in grown else item.group_id,
            task_id=item.task_id,
            task_index=item.index,
            number=item.number,
            start_before=start_before.timestamp(),
        )
        by_cell[item.cell_id].append(order)
    messages: list[tuple[CellAddress, dict[str, Any]]] = []
    unsent: dict[str, str] = {}
    for cell_id, runs in by_cell.items():
        address = addresses.get(cell_id)
        if address is None:
            continue
        try:
            orders = [item.body() for item in cells.split_orders(runs, (), specs.read)]
        except Exception as error:  # a failure for one cell must not stop the orders of the others
            unsent[address.name] = repr(error)
            continue
        messages += [(address, body) for body in orders]
    cells.send(messages)
    report_unreadable(specs.unreadable, unsent)


def report_unreadable(groups: Mapping[int, str], cells_without_orders: Mapping[str, str]) -> None:
    """Raise alerts for tasks that cannot be started: errors by group id, and by cell name."""
    alerts = [
        RaiseAlert(UNREADABLE, f"group {group_id}", f"its tasks are not started: {error}"[:1000])
        for group_id, error in groups.items()
    ]
    alerts += [
        RaiseAlert(UNREADABLE, f"orders of cell {name}", f"they are not sent: {error}"[:1000])
        for name, error in cells_without_orders.items()
    ]
    if alerts:
        log.error("orders_hindered", why=[f"{item.subject}: {item.text}" for item in alerts])
        apply(Effects(alerts=alerts), now=clock.now())
