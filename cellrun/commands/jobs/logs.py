"""`cellrun logs`: print the output of jobs, tasks and attempts."""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from cellrun.addresses import Subject, find_subject, find_tasks, task_address, task_name
from cellrun.api.polling import PollInterval, beats
from cellrun.api.session import Session, connect
from cellrun.commands.jobs.interrupt import explain_interrupt
from cellrun.commands.jobs.watch import follow_with_reasons, line_writer
from cellrun.display.output import TABLE, OutputOption, show_document
from cellrun.display.terminal import Deadline, IsTask, Which
from cellrun.documents import Task
from cellrun.errors import BadInput
from cellrun.follow import LogFollower, Write
from cellrun.states import TERMINAL_STATES

FAILED_STATES = TERMINAL_STATES - {"SUCCEEDED"}
_SPAN = re.compile(r"(?P<number>[0-9]{1,9}(?:\.[0-9]{1,6})?)(?P<unit>[smhd])")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

Choose = Callable[[Task], bool]


def logs(
    addresses: Annotated[list[str], Which.__metadata__[0]],
    follow_on: Annotated[
        bool, typer.Option("-f", "--follow", help="Print new output until the end.")
    ] = False,
    tail: Annotated[
        int | None,
        typer.Option(
            min=1, max=100_000, help="Only the last lines of each attempt, of stdout and stderr."
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Only tasks that have not ended before this time: 10m, 2h, 3d ago, or"
            " 2031-05-04T12:00:00Z. Lines have no times of their own.",
        ),
    ] = None,
    pattern: Annotated[
        str | None,
        typer.Option("--grep", metavar="REGEX", help="Only lines in which this occurs."),
    ] = None,
    only_failed: Annotated[
        bool, typer.Option("--failed", help="Only tasks that ended without success.")
    ] = False,
    is_task: IsTask = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Do not escape control characters on a terminal.")
    ] = False,
    deadline: Deadline = None,
    output: OutputOption = TABLE,
) -> None:
    """Print the output of tasks. Lines of several tasks begin with `group.index`.

    Lines of several jobs begin with `job/group.index`. On a terminal, control characters are
    escaped unless --raw; a file or pipe gets the lines unchanged.
    """
    lines: list[dict[str, str]] = []
    if follow_on and only_failed:
        raise BadInput("--failed: not together with --follow, since such tasks have ended")
    choose, matches = _chosen(only_failed, since), _read_pattern(pattern)
    with connect() as session:
        subjects = [find_subject(session, address, is_task=is_task) for address in addresses]
        jobs = {subject.job_id for subject in subjects}

        def keep(name: str, stream: str, line: str) -> None:
            lines.append({"task": name, "stream": stream, "line": line})

        def make_write(several: bool) -> Write:
            write = keep if output.is_document else line_writer(several, raw=raw)
            return _only_matching(write, matches)

        [first, *others] = subjects
        is_whole = first.job_id is not None and first.task is None and first.group is None
        if follow_on and not others and is_whole and since is None:
            job_id = first.job_id or 0
            write = make_write(sum(1 for _ in session.tasks(job_id, limit=2)) > 1)
            explain_interrupt(
                [job_id],
                lambda: follow_with_reasons(session, job_id, write, deadline, tail=tail),
            )
        else:
            printer = _Output(session, subjects, choose, has_jobs=len(jobs) > 1, tail=tail)
            explain_interrupt(
                [job_id for job_id in jobs if job_id is not None],
                lambda: printer.print(make_write, follow_on=follow_on, deadline=deadline),
            )
    if output.is_document:
        show_document(output, lines)


class _Output:
    """Prints the output of the chosen tasks and attempts of several subjects."""

    def __init__(
        self,
        session: Session,
        subjects: Sequence[Subject],
        choose: Choose,
        *,
        has_jobs: bool,
        tail: int | None,
    ) -> None:
        self._session = session
        self._attempts = {
            s.attempt["uid"]: task_name(s.task) if s.task else s.attempt["uid"]
            for s in subjects
            if s.attempt is not None
        }
        self._subjects = [s for s in subjects if s.attempt is None]
        self._choose = choose
        self._name = task_address if has_jobs else task_name
        self._tail = tail

    def print(
        self, make_write: Callable[[bool], Write], *, follow_on: bool, deadline: float | None
    ) -> None:
        """Print the output; with `follow_on`, new output until all of it has ended."""
        tasks = self._find()
        write = make_write(len(tasks) + len(self._attempts) > 1)
        follower = LogFollower(self._session, write, name_of=self._name, tail=self._tail)
        pace = PollInterval(deadline)
        for _ in beats(pace, "the output"):
            for task in tasks:
                follower.follow_task(task)
            ended = all(task["state"] in TERMINAL_STATES for task in tasks)
            for uid, name in self._attempts.items():
                is_over = self._session.attempt(uid)["state"] in TERMINAL_STATES
                follower.follow_attempt(uid, name, ended=is_over)
                ended = ended and is_over
            has_output = follower.read()
            if not follow_on or (not has_output and ended and follower.is_through()):
                break
            if has_output:
                pace.reset()
            tasks = self._session.patiently(self._find, pace)
        follower.close()

    def _find(self) -> list[Task]:
        """Return the present state of the chosen tasks."""
        found: dict[int, Task] = {}
        for subject in self._subjects:
            if subject.task is None:
                tasks = find_tasks(self._session, subject)
            else:
                tasks = [self._session.task(subject.task["id"])]
            found |= {task["id"]: task for task in tasks if self._choose(task)}
        return list(found.values())


def read_instant(text: str, now: datetime) -> datetime:
    """Return the instant `10m` ago, or an ISO 8601 one, in UTC unless it has a zone."""
    span = _SPAN.fullmatch(text)
    if span is not None:
        seconds = float(span["number"]) * _UNIT_SECONDS[span["unit"]]
        return now - timedelta(seconds=min(seconds, 1e9))
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise BadInput(f"--since {text!r}: expected 30s, 10m, 2h, 3d or an ISO time") from None
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)


def _chosen(only_failed: bool, since_text: str | None) -> Choose:
    since = None if since_text is None else read_instant(since_text, datetime.now(UTC))

    def choose(task: Task) -> bool:
        if only_failed and task["state"] not in FAILED_STATES:
            return False
        ended = task["finished_at"]
        return since is None or not ended or datetime.fromisoformat(ended) >= since

    return choose


def _read_pattern(pattern: str | None) -> re.Pattern[str] | None:
    try:
        return None if pattern is None else re.compile(pattern)
    except re.error as fault:
        raise BadInput(f"--grep {pattern!r}: is not a regular expression: {fault}") from None


def _only_matching(write: Write, matches: re.Pattern[str] | None) -> Write:
    if matches is None:
        return write

    def write_matching(name: str, stream: str, line: str) -> None:
        if matches.search(line):
            write(name, stream, line)

    return write_matching
