"""Why tasks and groups wait, on the operators' pages: in the words that API and command use."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.utils.html import format_html

from controlplane.admin.badges import instant
from controlplane.contract.states import TaskState
from controlplane.domain.placement.pending import Waiting, pending_reason
from controlplane.models import Job, Task, TaskGroup
from controlplane.queries.explain import explain_task
from controlplane.queries.overviews import load_shape_reasons
from controlplane.queries.tasks import load_waits


def attach_waits(tasks: Iterable[Task]) -> None:
    """Give each task what its job waits for as `shown_waits`, and as `shown_found` what placement
    found of it; two statements at most.
    """
    blocked = {task.job_id for task in tasks if task.job.waits_for_jobs}
    waits = load_waits(sorted(blocked)) if blocked else {}
    shapes = {task.shape_id for task in tasks if task.state == TaskState.PENDING}
    found = load_shape_reasons(shapes) if shapes else {}
    for task in tasks:
        task.shown_waits = waits.get(task.job_id, ())  # type: ignore[attr-defined]
        task.shown_found = (  # type: ignore[attr-defined]
            found.get(task.shape_id) or task.group.pending_reason
        )


def pending_note(task: Task, now: datetime) -> str:
    """Why a task is pending, in the words that API and command use; empty if it is not."""
    if task.state != TaskState.PENDING:
        return ""
    waiting = Waiting(
        not_before=task.not_before,
        attempt_open=task.attempt_open,
        startable_at=task.group.startable_at,
        depends_on=task.group.depends_on,
        found=task.shown_found,  # type: ignore[attr-defined]
        waits_for=task.shown_waits,  # type: ignore[attr-defined]
        is_bouncing=task.job.is_bouncing,
        start_after=task.job.start_after,
    )
    return str(pending_reason(waiting, now=now)["text"])


def group_notes(job: Job, groups: Sequence[TaskGroup], now: datetime) -> Mapping[int, str]:
    """Why each group waits of which something does, but for what concerns one task alone."""
    waiting = [group for group in groups if group.counts[TaskState.PENDING]]
    waits = load_waits([job.pk]).get(job.pk, ()) if job.waits_for_jobs and waiting else ()
    found = load_shape_reasons(group.shape_id for group in waiting) if waiting else {}
    notes = {}
    for group in waiting:
        known = Waiting(
            not_before=None,
            attempt_open=False,
            startable_at=group.startable_at,
            depends_on=group.depends_on,
            found=found.get(group.shape_id) or group.pending_reason,
            waits_for=waits,
            is_bouncing=job.is_bouncing,
            start_after=job.start_after,
        )
        notes[group.pk] = str(pending_reason(known, now=now)["text"])
    return notes


def waiting_facts(task: Task, *, now: datetime) -> list[tuple[str, Any]]:
    """What else is known of a task that waits: its place in the queue, room that is kept for it."""
    if task.state != TaskState.PENDING:
        return []
    found = explain_task(task.pk, now=now)
    queue, kept = found["queue"], found["nomination"]
    return [
        ("waits also because", "; ".join(reason["text"] for reason in found["also"]) or None),
        ("in the queue", queue["text"] if queue else None),
        ("last looked at", instant(found["considered_at"]) if found["considered_at"] else None),
        (
            "room is kept",
            format_html("on {} until {}", kept["cell"], instant(kept["until"])) if kept else None,
        ),
    ]
