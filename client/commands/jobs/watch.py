"""`cellrun wait`: follow jobs until they end."""

import sys
import time
from collections.abc import Sequence
from functools import partial

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from client.addresses import find_job_id
from client.api.polling import PollInterval, beats
from client.api.session import Session, connect
from client.commands.jobs.interrupt import explain_interrupt
from client.display.failures import print_failed_tasks
from client.display.render import counts_text, finished_count, state_text, total_counts
from client.display.terminal import (
    Deadline,
    JobAddresses,
    JsonFlag,
    show_json,
    stderr,
)
from client.display.visible import print_line
from client.display.waiting import WaitReporter
from client.documents import Job
from client.errors import EXIT_FAILED
from client.follow import Write, follow_job
from client.states import TERMINAL_STATES


def wait(
    jobs: JobAddresses,
    deadline: Deadline = None,
    as_json: JsonFlag = False,
) -> None:
    """Wait until jobs have ended. Exit with 0 only if all SUCCEEDED."""
    with connect() as session:
        ids = [find_job_id(session, job) for job in jobs]
        ended = explain_interrupt(ids, lambda: wait_for(session, ids, deadline))
        for job in ended:
            if job["state"] != "SUCCEEDED":
                print_end(session, job)
    if as_json:
        show_json(ended[0] if len(ended) == 1 else ended)
    if any(job["state"] != "SUCCEEDED" for job in ended):
        raise typer.Exit(EXIT_FAILED)


def wait_for(session: Session, ids: Sequence[int], deadline: float | None) -> list[Job]:
    """Wait for jobs; show progress bars on a terminal, otherwise a line per change of state."""
    console = stderr()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    pace = PollInterval(deadline)
    ended: dict[int, Job] = {}
    with Progress(
        *columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal
    ) as progress:
        bars = {job_id: progress.add_task(f"job {job_id}", total=None) for job_id in ids}
        previous: dict[int, Job] = {}
        reporters = {
            job_id: WaitReporter(session, job_id, progress.console.print) for job_id in ids
        }
        for _ in beats(pace, "job " + ", ".join(map(str, ids))):
            for job_id in bars.keys() - ended.keys():
                job = session.patiently(partial(session.job, job_id), pace)
                reporters[job_id].check(job, time.monotonic())
                before = previous.get(job_id)
                if job != before:
                    pace.reset()
                    done, total = finished_count(job)
                    progress.update(
                        bars[job_id],
                        description=_progress_text(job),
                        completed=done,
                        total=total,
                    )
                    if before is None or before["state"] != job["state"]:
                        _print_state(job, quiet=console.is_terminal)
                previous[job_id] = job
                if job["state"] in TERMINAL_STATES:
                    ended[job_id] = job
            if len(ended) == len(bars):
                break
    return [ended[job_id] for job_id in ids]


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
