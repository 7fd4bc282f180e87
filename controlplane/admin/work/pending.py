"""Show pending reasons of tasks and groups in the words of the API and the command."""

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
    """By id, why each task is pending of those that are; two statements at most."""
    waiting = [task.pk for task in tasks if task.state == TaskState.PENDING]
    return _nearest(load_task_reasons(waiting, now=now))


def group_notes(groups: Sequence[TaskGroup], now: datetime) -> Mapping[int, str]:
    """Return why the tasks of each group wait, without reasons of single tasks."""
    waiting = [group.pk for group in groups if group.counts[TaskState.PENDING]]
    return _nearest(load_group_reasons(waiting, now=now))


def _nearest(reasons: Mapping[int, Sequence[Reason]]) -> Mapping[int, str]:
    return {key: str(found[0]["text"]) for key, found in reasons.items()}


def waiting_facts(task: Task, *, now: datetime) -> list[tuple[str, Any]]:
    """What else is known of a task that waits: its place in the queue, room that is kept for it."""
    if task.state != TaskState.PENDING:
        return []
    found = explain_task(task.pk, now=now)
    queue, kept = found["queue"], found["nomination"]
    return [
        ("waits also because", "; ".join(reason["text"] for reason in found["also"]) or None),
        ("in the queue", queue["text"] if queue else None),
        ("last considered", instant(found["considered_at"]) if found["considered_at"] else None),
        (
            "room is kept",
            format_html("on {} until {}", kept["cell"], instant(kept["until"])) if kept else None,
        ),
    ]
