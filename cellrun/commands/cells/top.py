"""`cellrun top`: what runs, what waits, and what the cells have left."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from cellrun.api.session import Session, connect
from cellrun.display.listing import Listing, new_table
from cellrun.display.live import show_or_watch
from cellrun.display.output import TABLE, OutputOption
from cellrun.display.render import process_table, total_counts
from cellrun.display.terminal import stdout
from cellrun.documents import Cell
from cellrun.states import OPEN_STATES

_BAR, _SHORT_BAR = 20, 8
_NARROW = 90
"""Columns of a terminal in which long bars would be broken into two lines."""


def top(
    pool: Annotated[str | None, typer.Option(help="Only cells and jobs of this pool.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of jobs.")] = 15,
    is_once: Annotated[bool, typer.Option("--once", help="Print once, and end.")] = False,
    output: OutputOption = TABLE,
) -> None:
    """Show the use of cells and the open jobs, live on a terminal."""
    with connect() as session:

        def load() -> tuple[Any, RenderableType]:
            return _load(session, pool, limit)

        is_live = not is_once and not output.is_document and stdout().is_terminal
        show_or_watch(output, load, is_watching=is_live)


def _load(session: Session, pool: str | None, limit: int) -> tuple[Any, RenderableType]:
    cells = [cell for cell in session.cells() if pool in (None, cell["pool"])]
    jobs = list(islice(session.jobs(limit=limit, state=OPEN_STATES, pool=pool), limit))
    jobs.sort(key=lambda job: total_counts(job).get("RUNNING", 0), reverse=True)
    parts: list[RenderableType] = [_head(cells), Text()]
    if cells:
        parts += [_use_table(cells), Text()]
    now = datetime.now(UTC)
    parts.append(process_table(jobs, now) if jobs else Text("no open jobs"))
    return {"cells": cells, "jobs": jobs}, Group(*parts)


def _head(cells: Sequence[Cell]) -> Text:
    states = Counter(cell["state"].lower() for cell in cells)
    listed = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    return Text(f"cells: {listed or 'none'}", style="bold")


def _use_table(cells: Iterable[Cell]) -> Listing:
    table = new_table("CELL", "STATE", "CPU", "", "MEMORY", "")
    for cell in sorted(cells, key=lambda cell: cell["name"]):
        table.add_row(
            cell["name"],
            cell["state"].lower(),
            *_use(cell, "cpu", ""),
            *_use(cell, "memory_mib", " MiB"),
        )
    return table


def _use(cell: Cell, name: str, unit: str) -> tuple[Text, str]:
    """Return a bar, and the used and whole amount as text."""
    whole, free = cell["capacity"].get(name, 0), cell["free"].get(name, 0)
    used = max(whole - free, 0)
    length = _BAR if stdout().width >= _NARROW else _SHORT_BAR
    filled = round(length * used / whole) if whole else 0
    bar = Text.assemble(("█" * filled, "green"), ("░" * (length - filled), "dim"))
    return bar, f"{used:g} of {whole:g}{unit}"
