"""`cellrun cells`, `cordon`, `uncordon`, `drain`, `unquarantine`: show and operate cells."""

from functools import partial
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from cellrun.api.cells import DRAIN_SECONDS
from cellrun.api.polling import PollInterval
from cellrun.api.session import Session, connect
from cellrun.display.cells import cell_page, cell_table
from cellrun.display.live import WatchOption, show_or_watch
from cellrun.display.output import TABLE, Output, OutputOption, show
from cellrun.display.terminal import stderr
from cellrun.documents import Cell
from cellrun.errors import ClientError

CellName = Annotated[str, typer.Argument(metavar="CELL", help="Name of a cell.")]
Reason = Annotated[
    str, typer.Option(help="Reason, shown with the state of the cell and in the audit log.")
]


def cells(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Name of a cell.")] = None,
    is_watching: WatchOption = False,
    output: OutputOption = TABLE,
) -> None:
    """List the cells with their free capacity, or show one with the reason of its state."""
    with connect() as session:

        def load() -> tuple[Any, RenderableType]:
            if name is not None:
                cell = session.cell(name)
                return cell, cell_page(cell)
            found = session.cells()
            return found, cell_table(found) if found else "no cells"

        show_or_watch(output, load, is_watching=is_watching)


def cordon(cell: CellName, reason: Reason = "", output: OutputOption = TABLE) -> None:
    """Stop placement on a cell; its running attempts continue (operators)."""
    with connect(is_operator=True) as session:
        answer = session.cordon(cell, reason=reason)
    _show_order(answer, output)


def uncordon(cell: CellName, reason: Reason = "", output: OutputOption = TABLE) -> None:
    """Resume placement on a cell, and ignore its past failures (operators)."""
    with connect(is_operator=True) as session:
        answer = session.uncordon(cell, reason=reason)
    _show_order(answer, output)


def unquarantine(cell: CellName, reason: Reason = "", output: OutputOption = TABLE) -> None:
    """Lift the quarantine of a cell: it returns to its state before (operators)."""
    with connect(is_operator=True) as session:
        answer = session.unquarantine(cell, reason=reason)
    _show_order(answer, output)


def drain(
    cell: CellName,
    deadline: Annotated[
        float, typer.Option(help="Seconds until attempts that still run are stopped; -1: never.")
    ] = DRAIN_SECONDS,
    reason: Reason = "",
    wait: Annotated[bool, typer.Option("--wait", help="Wait until no attempt is left.")] = False,
    timeout: Annotated[
        float | None, typer.Option(help="With --wait: seconds after which to give up.")
    ] = None,
    output: OutputOption = TABLE,
) -> None:
    """Drain a cell: it takes no new work, and its attempts may finish (operators).

    Attempts that still run at the deadline are stopped; their tasks are requeued, free of charge.
    """
    until = None if deadline < 0 else deadline
    with connect(is_operator=True) as session:
        answer = session.drain(cell, deadline_seconds=until, reason=reason)
        if wait:
            answer = _wait_until_empty(session, answer, PollInterval(timeout))
    if wait and not output.is_document:
        print(f"cell {cell} is drained: no attempts left")
    else:
        _show_order(answer, output)


def _wait_until_empty(session: Session, cell: Cell, pace: PollInterval) -> Cell:
    """Return the cell once it has no attempts. Raise ClientError if it does not drain any more."""
    name, left = cell["name"], None
    while True:
        drain = cell["drain"]
        if drain is None:
            raise ClientError(f"cell {name} is {cell['state'].lower()} and does not drain")
        if drain["empty_since"] is not None:
            return cell
        if drain["left"] != left:
            left = drain["left"]
            stderr().print(f"{left} of {drain['total']} attempts left")
        pace.rest(f"cell {name}, with {left} attempts left")
        cell = session.patiently(partial(session.cell, name), pace)


def _show_order(answer: Cell, output: Output) -> None:
    """Print the state after an order; that of a LOST cell takes effect at its return."""
    note = "; the order takes effect when it returns" if answer["state"] == "LOST" else ""
    show(output, answer, f"cell {answer['name']} is {answer['state'].lower()}{note}")
