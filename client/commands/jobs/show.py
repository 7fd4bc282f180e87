"""`cellrun jobs`, `job`, `explain`: show objects and pending reasons."""

from itertools import islice
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from client.api.session import connect
from client.commands.jobs.watch import find_tasks
from client.display.render import (
    explanation,
    finished_count,
    job_page,
    job_table,
    state_text,
)
from client.display.terminal import IsTask, JsonFlag, show
from client.documents import Job, Task

Limit = Annotated[int, typer.Option(min=1, help="Maximum number of lines.")]


def jobs(
    state: Annotated[
        str | None, typer.Option(help="Only jobs in this state, for example running.")
    ] = None,
    project: Annotated[
        str | None,
        typer.Option(metavar="PROJECT", help="Only jobs of this project, as name or domain/name."),
    ] = None,
    pool: Annotated[str | None, typer.Option(help="Only jobs of this pool.")] = None,
    label: Annotated[
        str | None, typer.Option(metavar="NAME=VALUE", help="Only jobs with this label.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Only jobs with this name.")] = None,
    limit: Limit = 20,
    as_json: JsonFlag = False,
) -> None:
    """List jobs, newest first."""
    with connect() as session:
        filters = {"state": state, "project": project, "pool": pool, "label": label, "name": name}
        found = list(session.jobs(limit=limit, **filters))
    show(as_json, found, job_table(found) if found else "no jobs")


def job(
    job_id: Annotated[int, typer.Argument(metavar="ID", help="Id of a job.")],
    limit: Limit = 50,
    as_json: JsonFlag = False,
) -> None:
    """Show a job: its groups with counts by state, and its tasks."""
    with connect() as session:
        found = session.job(job_id)
        _, total = finished_count(found)
        tasks = list(islice(session.tasks(job_id, limit=limit), limit))
    show(as_json, {**found, "tasks": tasks}, job_page(found, tasks, total))


def explain(
    which: Annotated[str, typer.Argument(metavar="ID", help="Id of a job, or of a task (--task).")],
    is_task: IsTask = False,
    as_json: JsonFlag = False,
) -> None:
    """Explain why a task is pending, or where it runs; for a job, one pending task per group."""
    with connect() as session:
        owner, tasks = find_tasks(session, which, is_task=is_task)
        chosen = tasks if owner is None else _first_pending(tasks)
        if owner is not None and not chosen:
            show(as_json, [], _nothing_pending(owner))
            return
        found = [(task, session.explain(task["id"])) for task in chosen]
    drawn: list[RenderableType] = []
    for task, document in found:
        drawn.append(explanation(document, f"{task['group']}.{task['index']} (task {task['id']})"))
    documents = [document for _, document in found]
    show(as_json, documents[0] if owner is None else documents, Group(*drawn))


def _first_pending(tasks: list[Task]) -> list[Task]:
    """Return one pending task per group, since its tasks wait for the same reason."""
    chosen: dict[str, Task] = {}
    for task in tasks:
        if task["state"] == "PENDING":
            chosen.setdefault(task["group"], task)
    return list(chosen.values())


def _nothing_pending(owner: Job) -> Text:
    return Text.assemble(
        f"job {owner['id']} has no pending task; it is ", state_text(owner["state"])
    )
