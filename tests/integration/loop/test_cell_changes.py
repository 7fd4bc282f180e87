"""Changes of a cell are recorded in order: quarantines, orders with reasons, losses, returns."""

from datetime import timedelta

from controlplane import clock
from controlplane.commands.cells.operate import (
    cordon_cell,
    drain_cell,
    revoke_cell,
    uncordon_cell,
    unquarantine_cell,
)
from controlplane.contract.messages.reports import Heartbeat
from controlplane.models import AuditLine, Cell, CellChange
from tests.integration.loop.conftest import Loop

FULL = "the disk of its folder is full"


def story() -> list[tuple[str, str, str, str]]:
    """Return the changes of all cells, oldest first."""
    found = CellChange.objects.order_by("id")
    return list(found.values_list("from_state", "to_state", "reason", "actor"))


def test_a_quarantine_its_end_and_orders_are_recorded_in_order(loop: Loop) -> None:
    cell = loop.cell()
    cell.send(Heartbeat((), unfit=FULL).body())
    unquarantine_cell(name="cell-1", actor="olga", reason=" disk replaced ", now=clock.now())
    drain_cell(name="cell-1", actor="otto", reason="new kernel", now=clock.now())
    uncordon_cell(name="cell-1", actor="olga", now=clock.now())
    assert story() == [
        ("LOST", "READY", "first registration", ""),
        ("READY", "QUARANTINED", FULL, ""),
        ("QUARANTINED", "READY", "taken out of quarantine by olga: disk replaced", "olga"),
        ("READY", "DRAINING", "drained by otto: new kernel", "otto"),
        ("DRAINING", "READY", "uncordoned by olga", "olga"),
    ]
    assert Cell.objects.get().state_reason == "uncordoned by olga"
    lines = AuditLine.objects.filter(actor__in=["olga", "otto"]).order_by("id")
    assert list(lines.values_list("action", "actor", "text")) == [
        ("unquarantine.cell", "olga", "disk replaced"),
        ("drain.cell", "otto", "new kernel"),
        ("uncordon.cell", "olga", ""),
    ]


def test_an_order_for_a_lost_cell_is_recorded_and_its_return(loop: Loop) -> None:
    cell = loop.cell()
    Cell.objects.update(state="LOST", state_reason="silent")
    cordon_cell(name="cell-1", actor="olga", reason="fans", now=clock.now())
    assert Cell.objects.get().state_reason == "silent"
    cell.incarnation = "two"
    cell.register()
    assert story()[1:] == [
        ("LOST", "LOST", "cordoned by olga: fans", "olga"),
        ("LOST", "CORDONED", Cell.objects.get().state_reason, ""),
    ]


def test_a_revocation_is_recorded_also_of_a_lost_cell(loop: Loop) -> None:
    loop.cell()
    Cell.objects.update(state="LOST")
    revoke_cell(name="cell-1", actor="olga", reason="stolen", now=clock.now())
    assert story()[-1] == ("LOST", "LOST", "revoked by olga: stolen", "olga")


def test_a_heartbeat_and_a_repeated_order_record_nothing(loop: Loop) -> None:
    cell = loop.cell()
    cordon_cell(name="cell-1", actor="olga", now=clock.now())
    before = story()
    cell.beat()
    cell.register()
    cordon_cell(name="cell-1", actor="otto", now=clock.now())
    loop.converge()
    assert story() == before


def test_a_second_drain_keeps_the_start_of_the_first(loop: Loop) -> None:
    loop.cell()
    first = clock.now()
    drain_cell(name="cell-1", actor="olga", now=first)
    drain_cell(name="cell-1", actor="olga", now=first + timedelta(minutes=5))
    assert Cell.objects.get().draining_since == first
    uncordon_cell(name="cell-1", actor="olga", now=first + timedelta(minutes=6))
    assert Cell.objects.get().draining_since is None
    again = first + timedelta(minutes=7)
    drain_cell(name="cell-1", actor="olga", now=again)
    assert Cell.objects.get().draining_since == again


def test_changes_are_kept_as_long_as_closed_alerts(loop: Loop) -> None:
    loop.cell()
    CellChange.objects.update(at=clock.now() - timedelta(days=400))
    cordon_cell(name="cell-1", actor="olga", now=clock.now())
    loop.converge()
    assert [row[2] for row in story()] == ["cordoned by olga"]
