"""Render bulk operations: the jobs before the start, the progress, and the end."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cellrun.display.listing import new_table
from cellrun.display.render import COLOURS, duration_text, instant_text, state_text
from cellrun.documents import BulkCount, BulkOperation, BulkSelection

_DONE = {
    "cancel": "cancelled",
    "retry": "retried",
    "delete": "deleted",
    "hold": "held",
    "release": "released",
}
_STATE_COLOURS = {
    "running": COLOURS["RUNNING"],
    "done": COLOURS["SUCCEEDED"],
    "stopped": COLOURS["KILLED"],
}


def jobs_text(count: int) -> str:
    """Return `1 job`, `1,234 jobs`."""
    return "1 job" if count == 1 else f"{count:,} jobs"


def preview_page(action: str, found: BulkCount) -> RenderableType:
    """Render the number of jobs that match, and a table of the newest ones."""
    count = jobs_text(found["count"])
    if found["is_whole"]:
        head = f"{count} to {action}"
    else:
        head = f"{count} to {action} among the newest 10,000; older ones were not counted"
    parts: list[RenderableType] = [Text(head, style="bold")]
    if found["sample"]:
        table = new_table("JOB", "NAME", "STATE", "PROJECT")
        for job in found["sample"]:
            table.add_row(str(job["id"]), job["name"], state_text(job["state"]), job["project"])
        parts.append(table)
    if more := found["count"] - len(found["sample"]):
        parts.append(Text(f"… and {jobs_text(more)} more", style="dim"))
    return Group(*parts)


def operation_table(operations: Iterable[BulkOperation]) -> Table:
    """Render one line per operation."""
    table = new_table("ID", "ACTION", "STATE", "DONE", "REFUSED", "JOBS", "BY", "CREATED", "REASON")
    for item in operations:
        table.add_row(
            str(item["id"]),
            item["action"],
            _state(item),
            str(item["done"]),
            str(item["refused"]),
            _selection(item["filter"]),
            item["by"],
            instant_text(item["created_at"]),
            Text(item["reason"]),
        )
    return table


def operation_page(item: BulkOperation) -> RenderableType:
    """Render the progress of an operation, its jobs, and the first jobs that it refused."""
    head = Text.assemble(
        (f"bulk operation {item['id']}", "bold"), f"  {item['action']}  ", _state(item)
    )
    facts = new_table("FIELD", "VALUE")
    for name, value in (
        ("progress", progress_text(item)),
        ("jobs", _selection(item["filter"])),
        ("reason", item["reason"]),
        ("by", item["by"]),
        ("created", instant_text(item["created_at"])),
        ("ended", instant_text(item["ended_at"])),
        ("took", duration_text(item["created_at"], item["ended_at"])),
        ("ended because", item["ended_because"]),
    ):
        if value:
            facts.add_row(name, Text(value))
    parts: list[RenderableType] = [head, Text(), facts]
    if item["refusals"]:
        parts += [Text(), refusal_table(item)]
    return Group(*parts)


def refusal_table(item: BulkOperation) -> RenderableType:
    """Render the first jobs that an operation refused, with the reasons."""
    table = new_table("REFUSED JOB", "REASON")
    for refusal in item["refusals"]:
        table.add_row(str(refusal["job"]), Text(refusal["text"]))
    more = item["refused"] - len(item["refusals"])
    if more <= 0:
        return table
    return Group(table, Text(f"… and {jobs_text(more)} more", style="dim"))


def progress_text(item: BulkOperation) -> str:
    """Return `40 of about 120 jobs cancelled, 2 refused`; without `of` after the end."""
    whole = f" of about {item['expected']:,}" if item["state"] == "running" else ""
    noun = "job" if item["done"] == 1 and not whole else "jobs"
    done = f"{item['done']:,}{whole} {noun} {_DONE.get(item['action'], 'processed')}"
    return f"{done}, {item['refused']:,} refused" if item["refused"] else done


def end_text(item: BulkOperation) -> str:
    """Return one line about an operation: its state, its counts and why it ended early."""
    because = f" ({item['ended_because']})" if item["ended_because"] else ""
    return f"bulk operation {item['id']} is {item['state']}{because}: {progress_text(item)}"


def _state(item: BulkOperation) -> Text:
    return Text(item["state"], style=_STATE_COLOURS.get(item["state"], ""))


def _selection(jobs: BulkSelection) -> str:
    """Return the filter as options: `project default/lab, label sweep=7, state pending`."""
    parts = [f"{key} {jobs[key]}" for key in ("project", "pool", "name") if jobs[key]]
    parts += [f"label {name}={value}" for name, value in jobs["labels"].items()]
    parts += [f"state {state.lower()}" for state in jobs["states"]]
    return ", ".join(parts)
