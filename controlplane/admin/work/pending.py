"""Show pending reasons of tasks and groups with the texts of the API and the command."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.utils.html import format_html

from controlplane.admin.badges import instant
from controlplane.contract.states import TaskState
from controlplane.domain.placement.reasons.explain import Reason
from controlplane.models import Task, TaskGroup
from controlplane.queries.views.explain import explain_task
from controlplane.queries.views.pending import load_group_reasons, load_task_reasons


def task_notes(tasks: Iterable[Task], now: datetime) -> Mapping[int, str]:
    """Return the pending reason of each PENDING task by id, in at most two statements."""
    waiting = [task.pk for task in tasks if task.state == TaskState.PENDING]
    return _nearest(load_task_reasons(waiting, now=now))


def group_notes(groups: Sequence[TaskGroup], now: datetime) -> Mapping[int, str]:
    """Return the pending reason of each group by id, without reasons of single tasks."""
    waiting = [group.pk for group in groups if group.counts[TaskState.PENDING]]
    return _nearest(load_group_reasons(waiting, now=now))


def _nearest(reasons: Mapping[int, Sequence[Reason]]) -> Mapping[int, str]:
    return {key: str(found[0]["text"]) for key, found in reasons.items()}


def waiting_facts(task: Task, *, now: datetime) -> list[tuple[str, Any]]:
    """Return further facts of a PENDING task: its place in the queue and reserved capacity."""
    if task.state != TaskState.PENDING:
        return []
    found = explain_task(task.pk, now=now)
    queue, kept = found["queue"], found["nomination"]
    return [
        ("other pending reasons", "; ".join(reason["text"] for reason in found["also"]) or None),
        ("queue position", queue["text"] if queue else None),
        (
            "last considered by placement",
            instant(found["considered_at"]) if found["considered_at"] else None,
        ),
        (
            "reserved capacity",
            format_html("on cell {} until {}", kept["cell"], instant(kept["until"]))
            if kept
            else None,
        ),
    ]
