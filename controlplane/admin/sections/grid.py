"""The grid of a job's tasks: a square for each, in the colour of its state.

A script draws it from a letter for each task, since 10,000 elements would make a page slow.
"""

import json
from dataclasses import dataclass
from typing import ClassVar

from django.urls import reverse

from controlplane.admin.base import Section
from controlplane.domain.state.states import COLOURS, UNSUCCESSFUL
from controlplane.queries.pages.task_states import STATE_BASE, find_task_runs

_STATES = {
    chr(STATE_BASE + state): [state.name.lower(), colour, state in UNSUCCESSFUL]
    for state, colour in COLOURS.items()
}


@dataclass(frozen=True, slots=True)
class TaskGrid(Section):
    """The squares of all tasks of a job. `document`: see charts.js."""

    template: ClassVar[str] = "controlplane/section_grid.html"
    document: str = ""


def grid_sections(job_id: int, task_count: int) -> list[Section]:
    """Return the grid of a job with several tasks."""
    if task_count < 2:
        return []
    groups: dict[str, list[tuple[int, int, str]]] = {}
    for run in find_task_runs(job_id):
        groups.setdefault(run.group, []).append((run.first_id, run.first_index, run.states))
    document = {
        "address": reverse("admin:controlplane_task_change", args=[0]),
        "states": _STATES,
        "groups": [{"name": name, "runs": runs} for name, runs in groups.items()],
    }
    text = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    return [TaskGrid("All tasks", anchor="grid", document=text)]
