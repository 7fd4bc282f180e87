"""`cellrun cells`, `drain`: show and operate cells."""

from typing import Annotated

import typer

from client.api.cells import DRAIN_SECONDS
from client.api.session import connect
from client.display.render import cell_table
from client.display.terminal import JsonFlag, show


def cells(as_json: JsonFlag = False) -> None:
    """List the cells with their free capacity."""
    with connect() as session:
        found = session.cells()
    show(as_json, found, cell_table(found) if found else "no cells")


def drain(
    cell: Annotated[str, typer.Argument(metavar="CELL", help="Name of a cell.")],
    deadline: Annotated[
        float, typer.Option(help="Seconds until attempts that still run are stopped; -1: never.")
    ] = DRAIN_SECONDS,
    as_json: JsonFlag = False,
) -> None:
    """Drain a cell: it takes no new work, and its attempts may finish (operators).

    Attempts that still run at the deadline are stopped; their tasks are requeued, free of charge.
    """
    until = None if deadline < 0 else deadline
    with connect() as session:
        answer = session.drain(cell, deadline_seconds=until) or session.cell(cell)
    show(as_json, answer, f"cell {cell} is {answer['state'].lower()}")
