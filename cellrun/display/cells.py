"""Render cells: their states with reasons, capacity, and the progress of a drain."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cellrun.display.listing import new_table
from cellrun.display.render import COLOURS, instant_text
from cellrun.documents import Cell, Drain
from cellrun.task_options import show_marks

CELL_COLOURS = {
    "READY": COLOURS["SUCCEEDED"],
    "CORDONED": COLOURS["PENDING"],
    "DRAINING": COLOURS["ASSIGNED"],
    "QUARANTINED": COLOURS["FAILED"],
    "LOST": COLOURS["KILLED"],
}
_UNITS = {"memory_mib": " MiB", "disk_mib": " MiB"}


def cell_table(cells: Iterable[Cell]) -> Table:
    """Return a table with one line per cell, with its free capacity."""
    table = new_table(
        *("CELL", "STATE", "POOL", "CPU", "MEMORY", "GPU", "DRIVERS", "LABELS, TAGS", "LAST SEEN"),
        wide=("DISK", "TASK TYPES", "MISMATCH"),
    )
    for cell in cells:
        table.add_row(
            cell["name"],
            Text(_cell_state(cell), style=CELL_COLOURS.get(cell["state"], "")),
            cell["pool"],
            _share(cell, "cpu", ""),
            _share(cell, "memory_mib", " MiB"),
            _share(cell, "gpu", ""),
            ", ".join(cell["drivers"]),
            Text(show_marks(cell["labels"], cell["tags"])),
            instant_text(cell["last_seen_at"]),
            _share(cell, "disk_mib", " MiB"),
            ", ".join(cell["task_types"]),
            Text(cell["mismatch"]),
        )
    return table


def cell_page(cell: Cell) -> RenderableType:
    """Render one cell: its state with the reason, what it offers, and what is free."""
    state = cell["state"].lower() + (" (silent)" if cell["silent"] else "")
    head = Text.assemble(
        (f"{cell['name']}  ", "bold"), (state, CELL_COLOURS.get(cell["state"], ""))
    )
    drain = cell["drain"]
    facts = new_table("FIELD", "VALUE")
    facts.show_header = False
    for name, value in (
        ("reason", cell["state_reason"]),
        ("mismatch", cell["mismatch"]),
        ("quarantined until", instant_text(cell["quarantined_until"])),
        ("drain", "" if drain is None else _drain_text(drain)),
        ("drain deadline", instant_text(cell["drain_deadline_at"])),
        ("key revoked", instant_text(cell["revoked_at"])),
        ("pool", cell["pool"]),
        ("labels, tags", show_marks(cell["labels"], cell["tags"])),
        ("drivers", ", ".join(cell["drivers"])),
        ("task types", ", ".join(cell["task_types"])),
        ("last seen", instant_text(cell["last_seen_at"])),
    ):
        if value:
            facts.add_row(f"{name}:", Text(value))
    resources = new_table("RESOURCE", "FREE", "CAPACITY", "MAXIMUM")
    for name, amount in cell["capacity"].items():
        maximum = cell["max_capacity"].get(name)
        resources.add_row(
            name.removesuffix("_mib"),
            _amount(name, cell["free"].get(name, 0)),
            _amount(name, amount),
            "" if maximum is None else _amount(name, maximum),
        )
    return Group(head, Text(), facts, Text(), resources)


def _drain_text(drain: Drain) -> str:
    """Return `3 of 12 attempts left, the longest until 2031-05-04 12:00:00, …`."""
    if drain["empty_since"] is not None:
        return f"no attempts left since {instant_text(drain['empty_since'])}"
    text = f"{drain['left']} of {drain['total']} attempts left"
    if drain["longest_until"] is None:
        return f"{text}, without a limit for the longest"
    until = instant_text(drain["longest_until"])
    return f"{text}, the longest until {until}, grace period included"


def _amount(name: str, amount: float) -> str:
    return f"{amount:.15g}{_UNITS.get(name, '')}"


def _cell_state(cell: Cell) -> str:
    """Return the state of a cell; unless it is ready, with the reason and the rest of a drain."""
    state, drain = cell["state"].lower(), cell["drain"]
    text = state if state == "ready" else f"{state}: {cell['state_reason']}"
    if state == "draining" and drain is not None:
        is_empty = drain["empty_since"] is not None
        left = _drain_text(drain) if is_empty else f"{drain['left']} attempts left"
        text = f"{'drained' if is_empty else state}: {left} ({cell['state_reason']})"
    return f"{text} (silent)" if cell["silent"] else text


def _share(cell: Cell, name: str, unit: str) -> str:
    if not cell["capacity"].get(name):
        return ""
    return f"{cell['free'].get(name, 0):g} of {cell['capacity'][name]:g}{unit} free"
