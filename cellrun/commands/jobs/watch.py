"""`cellrun wait`: follow jobs until they end."""

import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from cellrun.addresses import find_job_id
from cellrun.api.polling import PollInterval, beats
from cellrun.api.session import Session, connect
from cellrun.commands.jobs.interrupt import explain_interrupt
from cellrun.display.failures import print_failed_tasks
from cellrun.display.output import TABLE, OutputOption, show_document
from cellrun.display.render import counts_text, finished_count, state_text, total_counts
from cellrun.display.terminal import Deadline, JobsOrFilter, stderr
from cellrun.display.visible import print_line
from cellrun.display.waiting import WaitReporter
from cellrun.documents import Job
from cellrun.errors import EXIT_FAILED, BadInput
from cellrun.follow import Write, follow_job
from cellrun.states import OPEN_STATES, TERMINAL_STATES

MOST_JOBS = 1_000
"""Jobs that one command waits for by a filter."""


def wait(
    jobs: JobsOrFilter = None,
    project: Annotated[
        str | None,
        typer.Option(metavar="PROJECT", help="Open jobs of this project, as name or domain/name."),
    ] = None,
    pool: Annotated[str | None, typer.Option(help="Open jobs of this pool.")] = None,
    name: Annotated[str | None, typer.Option(help="Open jobs with this name.")] = None,
    label: Annotated[
        str | None, typer.Option(metavar="NAME=VALUE", help="Open jobs with this label.")
    ] = None,
    deadline: Deadline = None,
    output: OutputOption = TABLE,
) -> None:
    """Wait until jobs have ended. Exit with 0 only if all SUCCEEDED.

    Instead of jobs, a filter selects those that are open at the start.
    """
    filters = {"project": project, "pool": pool, "name": name, "label": label}
    if bool(jobs) == any(filters.values()):
        raise BadInput("expected jobs, or a filter such as --name or --label")
    with connect() as session:
        ids = [find_job_id(session, job) for job in jobs or ()] or _find_open(session, filters)
        ended = explain_interrupt(ids, lambda: wait_for(session, ids, deadline))
        for job in ended:
            if job["state"] != "SUCCEEDED":
                print_end(session, job)
    if output.is_document:
        show_document(output, ended[0] if len(ended) == 1 else ended)
    if any(job["state"] != "SUCCEEDED" for job in ended):
        raise typer.Exit(EXIT_FAILED)


def _find_open(session: Session, filters: Mapping[str, str | None]) -> list[int]:
    """Return the open jobs that match. Raise BadInput for none, or too many."""
    found = session.jobs(limit=MOST_JOBS + 1, state=OPEN_STATES, **filters)
    ids = [job["id"] for job in found]
    if not ids:
        raise BadInput("no open job matches; `cellrun jobs` also lists those that have ended")
    if len(ids) > MOST_JOBS:
        raise BadInput(f"more than {MOST_JOBS} open jobs match: use a narrower filter")
    return ids


def wait_for(session: Session, ids: Sequence[int], deadline: float | None) -> list[Job]:
    """Wait for jobs; show progress bars on a terminal, otherwise a line per change of state."""
    console = stderr()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    pace = PollInterval(deadline)
    ended: dict[int, Job] = {}
    with Progress(
        *columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal
    ) as progress:
        bars: dict[int, TaskID] = {}
        previous: dict[int, Job] = {}
        reporters = {
            job_id: WaitReporter(session, job_id, progress.console.print) for job_id in ids
        }
        for _ in beats(pace, "job " + ", ".join(map(str, ids))):
            waited_for = [job_id for job_id in ids if job_id not in ended]
            for job in session.patiently(partial(_load, session, waited_for), pace):
                job_id = job["id"]
                reporters[job_id].check(job, time.monotonic())
                before = previous.get(job_id)
                if job != before:
                    pace.reset()
                    _draw(progress, bars, job)
                    if before is None or before["state"] != job["state"]:
                        _print_state(job, quiet=console.is_terminal)
                previous[job_id] = job
                if job["state"] in TERMINAL_STATES:
                    ended[job_id] = job
            if len(ended) == len(reporters):
                break
    return [ended[job_id] for job_id in ids]


def _draw(progress: Progress, bars: dict[int, TaskID], job: Job) -> None:
    """Draw the bar of a job, which begins once the number of its tasks is known."""
    done, total = finished_count(job)
    text = _progress_text(job)
    if job["id"] in bars:
        progress.update(bars[job["id"]], description=text, completed=done, total=total)
    else:
        bars[job["id"]] = progress.add_task(text, completed=done, total=total)


def _load(session: Session, ids: Sequence[int]) -> list[Job]:
    """Return jobs, several in one request. Raise ApiError if one is gone."""
    found = list(session.jobs_by_id(ids)) if len(ids) > 1 else []
    missing = set(ids) - {job["id"] for job in found}
    return found + [session.job(job_id) for job_id in sorted(missing)]


def follow(session: Session, job_id: int, deadline: float | None, *, quiet_stdout: bool) -> Job:
    """Write a job's output until it ends; with `quiet_stdout`, all of it to standard error."""
    several = sum(1 for _ in session.tasks(job_id, limit=2)) > 1
    return follow_with_reasons(
        session, job_id, line_writer(several, to_stderr=quiet_stdout), deadline
    )


def end_of(session: Session, job: Job) -> None:
    """Exit with EXIT_FAILED and the reason on standard error unless the job succeeded."""
    if job["state"] != "SUCCEEDED":
        print_end(session, job)
        raise typer.Exit(EXIT_FAILED)


def print_end(session: Session, job: Job) -> None:
    """Print the state of a job that did not succeed, and which tasks failed, on standard error."""
    why = f": {job['failure_reason']}" if job["failure_reason"] else ""
    stderr().print(
        Text.assemble(f"job {job['id']} ({job['name']}) ", state_text(job["state"]), why)
    )
    print_failed_tasks(session, job)


def follow_with_reasons(
    session: Session,
    job_id: int,
    write: Write,
    deadline: float | None,
    *,
    tail: int | None = None,
) -> Job:
    """Write the output of a job until it ends, and on standard error why it waits."""
    reporter = WaitReporter(session, job_id, lambda text: stderr().print(text))
    return follow_job(
        session,
        job_id,
        write,
        deadline_seconds=deadline,
        tail=tail,
        on_poll=lambda job: reporter.check(job, time.monotonic()),
    )


def _progress_text(job: Job) -> str:
    """Return the job with what counts while it runs: `job 7 sweep: 2 running, 1 failed`."""
    others = {state: n for state, n in total_counts(job).items() if state != "SUCCEEDED"}
    return f"job {job['id']} {job['name']}: {counts_text(others) or job['state'].lower()}"


def _print_state(job: Job, *, quiet: bool) -> None:
    if not quiet:
        done, total = finished_count(job)
        stderr().print(f"job {job['id']} {job['state'].lower()} ({done} of {total} tasks ended)")


def line_writer(several: bool, *, to_stderr: bool = False, raw: bool = False) -> Write:
    """Return a function that prints a line; of `several` tasks, with the name of its task."""

    def write(name: str, stream: str, line: str) -> None:
        out = sys.stderr if to_stderr or stream == "stderr" else sys.stdout
        print_line(f"{name} | {line}" if several else line, out, raw=raw)

    return write
