"""Render a dry run: where each group would be placed, why tasks would wait, what is preempted."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from client.render import COLOURS


def forecast(document: Mapping[str, Any]) -> RenderableType:
    """Render a dry run, some lines for each group."""
    if document["existing_job"] is not None:
        return Text(f"job {document['existing_job']} is that job already")
    lines = [line for group in document["groups"] for line in _lines(group)]
    for victim in document["evicts"]:
        text = f"would evict {victim['name']} (task {victim['task']}) of job {victim['job']}"
        lines.append(Text(f"{text} on {victim['cell']}", style=COLOURS["PREEMPTED"]))
    if not document["is_complete"]:
        lines.append(Text("more tasks wait before it than were considered", style="dim"))
    return Group(*lines)


def _lines(group: Mapping[str, Any]) -> Iterator[Text]:
    placed = sum(group["cells"].values())
    if placed:
        text = f"{placed} of {placed + group['waiting']} would go now: {_listed(group['cells'])}"
        yield Text.assemble((group["name"], "bold"), f": {text}")
    if not group["waiting"]:
        return
    what = "end unschedulable" if group["is_refused"] else "wait"
    why = group["reason"]["text"]
    style = COLOURS["UNSCHEDULABLE" if group["is_refused"] else "PENDING"]
    yield Text.assemble(
        (group["name"], "bold"), ": ", (f"{group['waiting']} would {what}", style), f": {why}"
    )
    for reason in group["also"]:
        yield Text(f"  also: {reason['text']}")
    if group["kept"]:
        yield Text(f"  room would be made: {_listed(group['kept'])}")


def _listed(cells: Mapping[str, int]) -> str:
    return ", ".join(f"{count} on {name}" for name, count in cells.items())
