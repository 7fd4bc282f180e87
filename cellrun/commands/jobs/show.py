"""`cellrun jobs`, `job`, `explain`: show objects and pending reasons."""

from datetime import UTC, datetime
from itertools import islice
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from cellrun.addresses import find_job, find_subject, find_tasks, task_address
from cellrun.api.session import Session, connect
from cellrun.display.live import WatchOption, show_or_watch
from cellrun.display.output import TABLE, OutputOption, show
from cellrun.display.render import (
    explanation,
    finished_count,
    job_page,
    job_table,
    process_table,
    state_text,
    status_line,
    total_counts,
)
from cellrun.display.terminal import IsTask, JobAddresses, Which
from cellrun.documents import Job, Task
from cellrun.states import OPEN_STATES, short_state

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
    is_watching: WatchOption = False,
    output: OutputOption = TABLE,
) -> None:
    """List jobs, newest first."""
    filters = {"state": state, "project": project, "pool": pool, "label": label, "name": name}
    with connect() as session:

        def load() -> tuple[Any, RenderableType]:
            found = list(session.jobs(limit=limit, **filters))
            return found, job_table(found) if found else "no jobs"

        show_or_watch(output, load, is_watching=is_watching)


def ps(
    is_all: Annotated[bool, typer.Option("-a", "--all", help="Also jobs that have ended.")] = False,
    is_mine: Annotated[bool, typer.Option("--mine", help="Only jobs that you submitted.")] = False,
    only_ids: Annotated[
        bool, typer.Option("-q", "--quiet", help="Print ids only, one on each line.")
    ] = False,
    limit: Limit = 50,
    is_watching: WatchOption = False,
    output: OutputOption = TABLE,
) -> None:
    """List open jobs with their owners and ages, newest first."""
    nothing = "no jobs" if is_all else "no open jobs"
    with connect() as session:
        owner = session.whoami()["user"] if is_mine else None
        state = None if is_all else OPEN_STATES

        def load() -> tuple[Any, RenderableType]:
            found = list(session.jobs(limit=limit, owner=owner, state=state))
            if only_ids:
                return found, Text("\n".join(str(each["id"]) for each in found))
            return found, process_table(found, datetime.now(UTC)) if found else nothing

        show_or_watch(output, load, is_watching=is_watching)


def job(
    addresses: JobAddresses,
    limit: Limit = 50,
    is_watching: WatchOption = False,
    output: OutputOption = TABLE,
) -> None:
    """Show jobs: their groups with counts by state, and their tasks."""
    with connect() as session:

        def load() -> tuple[Any, RenderableType]:
            shown = [_load_page(session, address, limit) for address in addresses]
            documents = [document for document, _ in shown]
            drawn: list[RenderableType] = []
            for _, page in shown:
                drawn += [*([Text()] if drawn else []), page]
            return documents[0] if len(shown) == 1 else documents, Group(*drawn)

        show_or_watch(output, load, is_watching=is_watching)


def status(
    addresses: JobAddresses,
    is_short: Annotated[
        bool,
        typer.Option("--short", help="Print running, success or failed, as for Snakemake."),
    ] = False,
    is_watching: WatchOption = False,
    output: OutputOption = TABLE,
) -> None:
    """Print the state of jobs with the counts of their tasks, one line for each."""
    with connect() as session:

        def load() -> tuple[Any, RenderableType]:
            found = [find_job(session, address) for address in addresses]
            lines = [
                Text(short_state(job["state"])) if is_short else status_line(job) for job in found
            ]
            states = [
                {
                    "id": job["id"],
                    "name": job["name"],
                    "state": job["state"],
                    "counts": total_counts(job),
                }
                for job in found
            ]
            return states[0] if len(states) == 1 else states, Group(*lines)

        show_or_watch(output, load, is_watching=is_watching)


def explain(
    which: Which,
    is_task: IsTask = False,
    output: OutputOption = TABLE,
) -> None:
    """Explain why a task is pending, or where it runs; for a job, one pending task per group."""
    with connect() as session:
        subject = find_subject(session, which, is_task=is_task)
        is_one = subject.task is not None or subject.attempt is not None
        tasks = find_tasks(session, subject)
        chosen = tasks if is_one else _first_pending(tasks)
        if not chosen and subject.job_id is not None:
            show(output, [], _nothing_pending(session.job(subject.job_id)))
            return
        found = [(task, session.explain(task["id"])) for task in chosen]
    drawn: list[RenderableType] = []
    for task, document in found:
        drawn.append(explanation(document, f"{task_address(task)} (task {task['id']})"))
    documents = [document for _, document in found]
    show(output, documents[0] if is_one else documents, Group(*drawn))


def _load_page(session: Session, address: str, limit: int) -> tuple[Any, RenderableType]:
    """Return the document and the page of a job."""
    found = find_job(session, address)
    _, total = finished_count(found)
    tasks = list(islice(session.tasks(found["id"], limit=limit), limit))
    return {**found, "tasks": tasks}, job_page(found, tasks, total)


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
