"""`cellrun describe`: what a person needs about a job, a task, an attempt or a cell, on a page."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cellrun.addresses import Subject, find_subject, task_address
from cellrun.api.session import Session, connect
from cellrun.commands.jobs.history import history_table
from cellrun.display.cells import cell_page
from cellrun.display.failures import describe_failure
from cellrun.display.listing import new_table
from cellrun.display.output import TABLE, OutputOption, show
from cellrun.display.render import (
    cache_text,
    counts_text,
    duration_text,
    explanation,
    instant_of,
    instant_text,
    state_text,
    status_line,
)
from cellrun.display.terminal import IsTask, Which
from cellrun.documents import Attempt, Change, Job, Task
from cellrun.errors import BadInput

EVENTS = 10
SHOWN_TASKS = 5
_FAILED = "failed,worker_failed,unschedulable,preempted"


def describe(
    which: Which,
    is_task: IsTask = False,
    is_cell: Annotated[bool, typer.Option("--cell", help="ADDRESS is the name of a cell.")] = False,
    output: OutputOption = TABLE,
) -> None:
    """Show a job, a task, an attempt or a cell with reasons, failures, and the last events."""
    if is_cell and is_task:
        raise BadInput("--cell: not together with --task")
    with connect() as session:
        if is_cell:
            cell = session.cell(which)
            show(output, cell, cell_page(cell))
            return
        subject = find_subject(session, which, is_task=is_task)
        if subject.group is not None and subject.task is None:
            raise BadInput(f"{which}: expected a job, a task or an attempt, not a group")
        document, page = _describe(session, subject)
    show(output, document, page)


def _describe(session: Session, subject: Subject) -> tuple[dict[str, Any], RenderableType]:
    if subject.attempt is not None:
        return _describe_attempt(session, subject.attempt)
    if subject.task is not None:
        return _describe_task(session, subject.task)
    assert subject.job_id is not None
    return _describe_job(session, session.job(subject.job_id))


def _describe_job(session: Session, job: Job) -> tuple[dict[str, Any], RenderableType]:
    waiting = list(session.tasks(job["id"], state="pending", limit=SHOWN_TASKS))
    failed = list(session.tasks(job["id"], state=_FAILED, limit=SHOWN_TASKS + 1))
    events = list(session.history("jobs", job["id"], limit=EVENTS))
    facts: list[tuple[str, str | Text]] = [
        ("state", status_line(job)),
        ("reason", job["failure_reason"]),
        ("owner", job["owner"]),
        ("project", f"{job['domain']}/{job['project']}"),
        ("pool, band", f"{job['pool']}, {job['band']}"),
        ("guid", job["guid"] or ""),
        ("schedule", instant_of(job)),
        ("labels", ", ".join(f"{key}={value}" for key, value in sorted(job["labels"].items()))),
        ("created", instant_text(job["created_at"])),
        ("started", instant_text(job["started_at"])),
        ("took", duration_text(job["started_at"], job["finished_at"])),
    ]
    parts: list[RenderableType] = [_facts(facts), *_titled("groups", _group_table(job))]
    reasons = dict.fromkeys(
        task["pending_reason"]["text"] for task in waiting if task["pending_reason"]
    )
    if reasons:
        parts += _titled("why tasks wait", *(Text(f"  {text}") for text in reasons))
    if failed:
        lines = [Text(f"  {describe_failure(session, task)}") for task in failed[:SHOWN_TASKS]]
        if len(failed) > SHOWN_TASKS:
            lines.append(Text(f"  … and more: cellrun job {job['id']}"))
        parts += _titled("tasks that failed", *lines)
    parts += _events(events, f"cellrun history {job['id']}")
    parts += _titled("logs", Text(f"  cellrun logs {job['id']}"))
    return {**job, "waiting": waiting, "failed": failed, "history": events}, Group(*parts)


def _describe_task(session: Session, task: Task) -> tuple[dict[str, Any], RenderableType]:
    address = task_address(task)
    attempts = session.attempts(task["id"])
    explained = session.explain(task["id"])
    events = list(session.history("tasks", task["id"], limit=EVENTS))
    facts: list[tuple[str, str | Text]] = [
        ("task", f"{address} (id {task['id']})"),
        ("state", state_text(task["state"])),
        ("reason", task["failure_reason"]),
        ("cell", task["cell_id"] or ""),
        ("requests", _request_text(task["resources"])),
        ("exit code", "" if task["exit_code"] is None else str(task["exit_code"])),
        ("cache", cache_text(task)),
        ("started", instant_text(task["started_at"])),
        ("took", duration_text(task["started_at"], task["finished_at"])),
    ]
    parts: list[RenderableType] = [_facts(facts)]
    if task["state"] == "PENDING":
        parts += [Text(), explanation(explained, "why it waits")]
    if attempts:
        parts += _titled("attempts", _attempt_table(attempts))
    parts += _events(events, f"cellrun history {address}")
    if attempts:
        parts += _titled("logs", Text(f"  cellrun logs {address}"))
    document = {**task, "attempts": attempts, "explanation": explained, "history": events}
    return document, Group(*parts)


def _describe_attempt(session: Session, attempt: Attempt) -> tuple[dict[str, Any], RenderableType]:
    uid = attempt["uid"]
    events = list(session.history("attempts", uid, limit=EVENTS))
    usage = attempt["usage"] or {}
    facts: list[tuple[str, str | Text]] = [
        ("attempt", f"{uid} ({attempt['number']} of task {attempt['task']})"),
        ("job", str(attempt["job"])),
        ("state", state_text(attempt["state"])),
        ("reason", attempt["failure_reason"]),
        ("cell", attempt["cell_id"]),
        ("container", attempt["container_id"] or ""),
        ("requests", _request_text(attempt["resources"])),
        ("exit code", "" if attempt["exit_code"] is None else str(attempt["exit_code"])),
        ("used", ", ".join(f"{name} {value}" for name, value in usage.items())),
        ("created", instant_text(attempt["created_at"])),
        ("started", instant_text(attempt["started_at"])),
        ("took", duration_text(attempt["started_at"], attempt["finished_at"])),
    ]
    parts: list[RenderableType] = [_facts(facts), *_events(events, f"cellrun history {uid}")]
    parts += _titled("logs", Text(f"  cellrun logs {uid}"))
    return {**attempt, "history": events}, Group(*parts)


def _facts(facts: Iterable[tuple[str, str | Text]]) -> Table:
    """Return the facts that have a value."""
    table = new_table("FIELD", "VALUE")
    table.show_header = False
    for name, value in facts:
        if value:
            table.add_row(f"{name}:", Text(value) if isinstance(value, str) else value)
    return table


def _titled(title: str, *parts: RenderableType) -> list[RenderableType]:
    return [Text(), Text(f"{title}:", style="bold"), *parts]


def _events(changes: list[Change], command: str) -> list[RenderableType]:
    """Return the last events, oldest first, and the command that shows all."""
    if not changes:
        return []
    parts = _titled("last events", history_table(reversed(changes)))
    return [*parts, Text(f"  all: {command}", style="dim")]


def _group_table(job: Job) -> Table:
    spec: Mapping[str, Any] = job["spec"] or {}
    written = {group.get("name"): group for group in spec.get("groups") or ()}
    table = new_table("GROUP", "TASKS", "COUNTS", "REQUESTS")
    for name, by_phase in job["task_status_count"].items():
        counts = by_phase.get("phase", {})
        own = written.get(name, spec).get("resources") or {}
        requests = [f"{key} {amount}" for key, amount in own.items() if amount is not None]
        table.add_row(name, str(sum(counts.values())), counts_text(counts), ", ".join(requests))
    return table


def _request_text(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in resources.items())


def _attempt_table(attempts: Iterable[Attempt]) -> Table:
    """Return the attempts; their requests only if retry rules increased some of them."""
    listed = list(attempts)
    requests = [_request_text(attempt["resources"]) for attempt in listed]
    has_grown = len(set(requests)) > 1
    columns = ("REQUESTS",) if has_grown else ()
    names = ("NUMBER", "STATE", "CELL", "EXIT", "TOOK", *columns, "REASON")
    table = new_table(*names, wide=("UID",))
    for attempt, request in zip(listed, requests, strict=True):
        table.add_row(
            str(attempt["number"]),
            state_text(attempt["state"]),
            attempt["cell_id"],
            "" if attempt["exit_code"] is None else str(attempt["exit_code"]),
            duration_text(attempt["started_at"], attempt["finished_at"]),
            *((request,) if has_grown else ()),
            Text(attempt["failure_reason"]),
            attempt["uid"],
        )
    return table
