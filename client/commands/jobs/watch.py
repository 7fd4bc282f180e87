"""`cellrun wait` and `cellrun logs`: follow a job until it ends."""

import sys
from collections.abc import Sequence
from functools import partial
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from client.addresses import find_job_id, find_subject, find_tasks, task_name
from client.api.polling import PollInterval, beats
from client.api.session import Session, connect
from client.display.render import finished_count, state_text
from client.display.terminal import (
    Deadline,
    IsTask,
    JobAddresses,
    JsonFlag,
    Which,
    show_json,
    stderr,
)
from client.display.visible import print_line
from client.documents import Job, Task
from client.errors import EXIT_FAILED, ClientError
from client.follow import LogFollower, Write, follow_job
from client.states import TERMINAL_STATES


def wait(
    jobs: JobAddresses,
    deadline: Deadline = None,
    as_json: JsonFlag = False,
) -> None:
    """Wait until jobs have ended. Exit with 0 only if all SUCCEEDED."""
    with connect() as session:
        ended = wait_for(session, [find_job_id(session, job) for job in jobs], deadline)
    if as_json:
        show_json(ended[0] if len(ended) == 1 else ended)
    if any(job["state"] != "SUCCEEDED" for job in ended):
        raise typer.Exit(EXIT_FAILED)


def logs(
    which: Which,
    follow_on: Annotated[
        bool, typer.Option("-f", "--follow", help="Print new output until the end.")
    ] = False,
    is_task: IsTask = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Do not escape control characters on a terminal.")
    ] = False,
    deadline: Deadline = None,
    as_json: JsonFlag = False,
) -> None:
    """Print the output of tasks. Lines of several tasks begin with `group.index`.

    On a terminal, control characters are escaped unless --raw; a file or pipe gets the lines
    unchanged.
    """
    lines: list[dict[str, str]] = []

    def keep(name: str, stream: str, line: str) -> None:
        lines.append({"task": name, "stream": stream, "line": line})

    with connect() as session:
        subject = find_subject(session, which, is_task=is_task)
        if subject.attempt is not None:
            write = keep if as_json else _writer(several=False, raw=raw)
            name = task_name(subject.task) if subject.task else subject.attempt["uid"]
            _attempt_logs(session, subject.attempt["uid"], name, write, follow_on, deadline)
        else:
            tasks = find_tasks(session, subject)
            write = keep if as_json else _writer(len(tasks) > 1, raw=raw)
            is_whole = subject.task is None and subject.group is None
            if follow_on and is_whole and subject.job_id is not None:
                follow_job(session, subject.job_id, write, deadline_seconds=deadline)
            else:
                _task_logs(session, tasks, write, follow_on, deadline)
    if as_json:
        show_json(lines)


def wait_for(session: Session, ids: Sequence[int], deadline: float | None) -> list[Job]:
    """Wait for jobs; show progress bars on a terminal, otherwise a line per change of state."""
    console = stderr()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    pace = PollInterval(deadline)
    ended: dict[int, Job] = {}
    with Progress(
        *columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal
    ) as progress:
        bars = {job_id: progress.add_task(f"job {job_id}", total=None) for job_id in ids}
        previous: dict[int, Job] = {}
        for _ in beats(pace, "job " + ", ".join(map(str, ids))):
            for job_id in bars.keys() - ended.keys():
                job = session.patiently(partial(session.job, job_id), pace)
                before = previous.get(job_id)
                if job != before:
                    pace.reset()
                    done, total = finished_count(job)
                    progress.update(
                        bars[job_id],
                        description=f"{job['name']} {job['state'].lower()}",
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
    return follow_job(
        session, job_id, _writer(several, to_stderr=quiet_stdout), deadline_seconds=deadline
    )


def end_of(session: Session, job: Job) -> None:
    """Exit with EXIT_FAILED and the reason on standard error unless the job succeeded."""
    if job["state"] != "SUCCEEDED":
        stderr().print(f"job {job['id']}", state_text(job["state"]), job["failure_reason"])
        print_failure(session, job)
        raise typer.Exit(EXIT_FAILED)


def print_failure(session: Session, job: Job) -> None:
    """Print the message of the first task that failed without an exit code, if available."""
    try:
        failed = (t for t in session.tasks(job["id"]) if t["state"] in ("FAILED", "WORKER_FAILED"))
        task = next((t for t in failed if t["exit_code"] is None), None)
        attempts = session.attempts(task["id"]) if task else []
    except ClientError:
        return  # the job's own reason is printed already
    if task and attempts and attempts[-1]["failure_reason"]:
        stderr().print(f"  {task['group']}.{task['index']}: {attempts[-1]['failure_reason']}")


def _print_state(job: Job, *, quiet: bool) -> None:
    if not quiet:
        done, total = finished_count(job)
        stderr().print(f"job {job['id']} {job['state'].lower()} ({done} of {total} tasks ended)")


def _writer(several: bool, *, to_stderr: bool = False, raw: bool = False) -> Write:
    def write(name: str, stream: str, line: str) -> None:
        out = sys.stderr if to_stderr or stream == "stderr" else sys.stdout
        print_line(f"{name} | {line}" if several else line, out, raw=raw)

    return write


def _attempt_logs(
    session: Session, uid: str, name: str, write: Write, follow_on: bool, deadline: float | None
) -> None:
    follower, pace = LogFollower(session, write), PollInterval(deadline)
    for _ in beats(pace, f"attempt {uid}"):
        attempt = session.attempt(uid)
        follower.follow_attempt(uid, name, ended=attempt["state"] in TERMINAL_STATES)
        has_output = follower.read()
        if not follow_on or (not has_output and follower.is_through()):
            break
    follower.close()


def _task_logs(
    session: Session, tasks: list[Task], write: Write, follow_on: bool, deadline: float | None
) -> None:
    follower, pace = LogFollower(session, write), PollInterval(deadline)
    for _ in beats(pace, "the task"):
        for task in tasks:
            follower.follow_task(task)
        has_output = follower.read()
        ended = all(task["state"] in TERMINAL_STATES for task in tasks)
        if not follow_on or (not has_output and ended and follower.is_through()):
            break
        tasks = [session.task(task["id"]) for task in tasks]
    follower.close()
