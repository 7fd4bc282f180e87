"""Render a dry run: where each group would be placed, why tasks would wait, what is preempted."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from cellrun.display.render import COLOURS


def forecast(document: Mapping[str, Any]) -> RenderableType:
    """Render a dry run, some lines for each group."""
    if document["existing_job"] is not None:
        return Text(
            f"job {document['existing_job']} has the same guid and document: it would be returned"
        )
    lines = [line for group in document["groups"] for line in _lines(group)]
    for victim in document["evicts"]:
        text = "would evict a task of another project"
        if victim["job"] is not None:
            text = f"would evict {victim['name']} (task {victim['task']}) of job {victim['job']}"
        lines.append(Text(f"{text} on {victim['cell']}", style=COLOURS["PREEMPTED"]))
    lines += [_growth_line(rule) for rule in document.get("growth", ())]
    if not document["is_complete"]:
        lines.append(
            Text("incomplete: more tasks wait before this job than were considered", style="dim")
        )
    return Group(*lines)


def _lines(group: Mapping[str, Any]) -> Iterator[Text]:
    placed = sum(group["cells"].values())
    if placed:
        total = _tasks(placed + group["waiting"])
        text = f"{placed} of {total} would be placed now: {_listed(group['cells'])}"
        yield Text.assemble((group["name"], "bold"), f": {text}")
    if not group["waiting"]:
        return
    verb = "end unschedulable" if group["is_refused"] else "wait"
    why = group["reason"]["text"]
    style = COLOURS["UNSCHEDULABLE" if group["is_refused"] else "PENDING"]
    yield Text.assemble(
        (group["name"], "bold"),
        ": ",
        (f"{_tasks(group['waiting'])} would {verb}", style),
        f": {why}",
    )
    for reason in group["also"]:
        yield Text(f"  also: {reason['text']}")
    if group["kept"]:
        yield Text(f"  evictions would make room for: {_listed(group['kept'])}")


def _growth_line(rule: Mapping[str, Any]) -> Text:
    """Return the requests of the retries of one rule: "would retry with cpu 2, memory_mib 1024"."""
    requests = [
        ", ".join(f"{name} {amount:g}" for name, amount in request.items())
        for request in rule["requests"]
    ]
    text = f"retry with {'; '.join(requests)}" if requests else "not retry"
    if rule["refusal"]:
        text += f", then fail: it {rule['refusal']}" if requests else f": it {rule['refusal']}"
    name = f": rule {rule['rule']} of on_exit would "
    return Text.assemble((rule["group"], "bold"), name, text)


def _tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"


def _listed(cells: Mapping[str, int]) -> str:
    return ", ".join(f"{count} on {name}" for name, count in cells.items())
