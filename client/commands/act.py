"""`cellrun cancel` and `cellrun drain`: what changes something."""

from typing import Annotated

import typer

from client.documents import TERMINAL_STATES
from client.session import connect
from client.terminal import JsonFlag, show


def cancel(
    job_id: Annotated[int, typer.Argument(metavar="ID")],
    reason: Annotated[str, typer.Option(help="Kept in the history.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Kill at once, without grace.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Cancel a job: its open tasks are KILLED."""
    with connect() as session:
        answer = session.cancel_job(job_id, reason=reason, force=force) or session.job(job_id)
    state = answer["state"]
    ended = state in TERMINAL_STATES
    show(
        as_json,
        answer,
        f"job {job_id} had ended: it is {state.lower()}"
        if ended
        else f"job {job_id} is being cancelled",
    )


def drain(
    cell: Annotated[str, typer.Argument(metavar="CELL")],
    as_json: JsonFlag = False,
) -> None:
    """Drain a cell: it takes no new work, and what it has leaves it (operators)."""
    with connect() as session:
        answer = session.drain(cell) or session.cell(cell)
    show(as_json, answer, f"cell {cell} is {answer['state'].lower()}")
