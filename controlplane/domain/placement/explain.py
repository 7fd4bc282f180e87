"""Why the tasks of a shape wait, as figures and as a sentence: the best cell, and what it lacks."""

from collections.abc import Mapping, Sequence
from typing import Any

from controlplane.domain.snapshots import CellFacts, PendingShape, PlacementSnapshot, Resources

NO_CELL_MATCHES = "no_cell_matches"
INSUFFICIENT_RESOURCES = "insufficient_resources"
WAITING_FOR_GANG = "waiting_for_gang"

_UNITS = {"cpu_millis": "of a core", "memory_mib": "MiB of memory", "disk_mib": "MiB of disk"}


def explain_shape(
    shape: PendingShape, snapshot: PlacementSnapshot, used: Sequence[Resources]
) -> dict[str, Any]:
    """The reason of `shape`: {code, text, and figures}. `used`: per cell, in this pass too."""
    fitting = [
        (cell, held)
        for cell, held in zip(snapshot.cells, used, strict=True)
        if shape.task_type in cell.task_types
    ]
    if not fitting:
        return _no_cell(shape, snapshot)
    best, free = min(
        ((cell, free_of(cell.capacity, held)) for cell, held in fitting),
        key=lambda pair: (_distance(shape.resources, pair[1], pair[0].capacity), pair[0].name),
    )
    lacks = shortfall(shape.resources, free)
    never = all(shortfall(shape.resources, cell.capacity) for cell, _ in fitting)
    what = describe_shortfall(lacks)
    text = (
        f"larger than every cell of the pool: {best.name} comes closest and lacks {what}"
        if never
        else f"no cell has enough free: {best.name} comes closest and lacks {what}"
    )
    return {
        "code": INSUFFICIENT_RESOURCES,
        "text": text,
        "cell": best.name,
        "shortfall": lacks,
        "never_fits": never,
    }


def explain_gang(need: int, have: int, missing: Mapping[str, Any] | None) -> dict[str, Any]:
    """Why a gang waits: `need` members must start together, `have` of them could.

    `missing`: why the next one could not; None: it waits itself, to be tried again.
    """
    why = missing["text"] if missing else "the others are not ready yet"
    text = f"its gang starts together: {need} more must be placed at once, {have} could be; {why}"
    return {"code": WAITING_FOR_GANG, "text": text, "need": need, "have": have}


def shortfall(request: Resources, free: Resources) -> dict[str, int]:
    """What `free` lacks of `request`, per resource; empty if it fits."""
    return {
        name: amount - free.get(name, 0)
        for name, amount in sorted(request.items())
        if amount > free.get(name, 0)
    }


def describe_shortfall(lacks: Mapping[str, int]) -> str:
    """The shortfall in words: "0.5 of a core and 512 MiB of memory"."""
    parts = [
        f"{amount / 1000:g} {_UNITS[name]}"
        if name == "cpu_millis"
        else f"{amount} {_UNITS.get(name, name)}"
        for name, amount in lacks.items()
    ]
    return " and ".join(parts) or "nothing"


def free_of(capacity: Resources, used: Resources) -> dict[str, int]:
    """Capacity less what is held, never below zero."""
    return {name: max(amount - used.get(name, 0), 0) for name, amount in capacity.items()}


def _distance(request: Resources, free: Resources, capacity: Resources) -> float:
    lacks = shortfall(request, free)
    return max(
        (amount / max(capacity.get(name, 0), 1) for name, amount in lacks.items()), default=0
    )


def _no_cell(shape: PendingShape, snapshot: PlacementSnapshot) -> dict[str, Any]:
    ready: Sequence[CellFacts] = snapshot.cells
    unready = {state.value: count for state, count in sorted(snapshot.unready_cells.items())}
    if ready:
        text = (
            f"none of the {len(ready)} ready cells of the pool runs tasks of type {shape.task_type}"
        )
    elif unready:
        listed = ", ".join(f"{count} {state}" for state, count in unready.items())
        text = f"the pool has no ready cell ({listed})"
    else:
        text = "the pool has no cell"
    return {"code": NO_CELL_MATCHES, "text": text, "ready_cells": len(ready), "unready": unready}
