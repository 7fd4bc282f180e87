"""`cellrun exec`: run a program in a running task."""

from typing import Annotated

import typer

from cellrun.addresses import find_one_task, find_subject, task_address
from cellrun.api.session import Session, connect
from cellrun.display.terminal import IsTask, show_error, stderr
from cellrun.errors import EXIT_INTERRUPTED, ApiError, BadInput, ClientError
from cellrun.exec.program import EXIT_LOST, STDIN, attach
from cellrun.exec.terminal import is_tty, reserve_standard_streams, size_of_terminal
from cellrun.settings import load_settings

SHELL = ("/bin/sh",)
_FLAGS = {"-i": "i", "--stdin": "i", "-t": "t", "--tty": "t", "-it": "it", "-ti": "it"}


def enter(
    address: Annotated[
        str,
        typer.Argument(
            metavar="TASK",
            help="JOB with one task, JOB/GROUP.INDEX, JOB/GROUP.INDEX#ATTEMPT or the uid of an"
            " attempt. JOB is an id, a name (the newest job of that name) or a guid.",
        ),
    ],
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND",
            help="The program and its arguments; on a terminal /bin/sh with -i and -t by default.",
        ),
    ] = None,
    stdin: Annotated[
        bool, typer.Option("-i", "--stdin", help="Pass standard input to the program.")
    ] = False,
    tty: Annotated[
        bool, typer.Option("-t", "--tty", help="Run the program in a pseudo-terminal.")
    ] = False,
    is_task: IsTask = False,
) -> None:
    """Run a program in a running task: its container, variables and folder.

    The exit code is the program's; 255 if there is none, for example since the task does not run or
    the connection was lost. Without -t, Ctrl-C sends SIGINT to the program, and a second Ctrl-C
    leaves.
    """
    reserve_standard_streams()
    argv, flags = read_command(command or [])
    stdin, tty = stdin or "i" in flags, tty or "t" in flags
    try:
        if not argv:
            if not is_tty(STDIN):
                raise BadInput("no command: use `cellrun exec TASK -- COMMAND`")
            argv, stdin, tty = SHELL, True, True
        if tty and stdin and not is_tty(STDIN):
            raise BadInput("-t: standard input is not a terminal; omit -t")
        with connect() as session:
            uid = _find_attempt(session, address, is_task=is_task)
            code, reason = _run(session, uid, argv, tty=tty, stdin=stdin)
    except ClientError as fault:
        show_error(fault)
        raise typer.Exit(EXIT_LOST) from None
    except KeyboardInterrupt:
        stderr().print("interrupted")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if reason:
        show_error(ClientError(reason))
    raise typer.Exit(code if 0 <= code <= EXIT_LOST else EXIT_LOST)


def read_command(words: list[str]) -> tuple[tuple[str, ...], str]:
    """Return the command, and the flags `i` and `t` between the task and the command."""
    flags = ""
    rest = list(words)
    while rest and rest[0] in _FLAGS:
        flags += _FLAGS[rest.pop(0)]
    if rest and rest[0] == "--":
        rest.pop(0)
    return tuple(rest), flags


def _find_attempt(session: Session, address: str, *, is_task: bool) -> str:
    """Return the uid of the attempt, or of the newest one of a task. Raise BadInput, ApiError."""
    subject = find_subject(session, address, is_task=is_task)
    if subject.attempt is not None:
        return subject.attempt["uid"]
    task = subject.task or find_one_task(session, address, is_task=is_task)
    attempts = session.attempts(task["id"])
    if not attempts:
        raise BadInput(f"task {task_address(task)} is {task['state']}: it does not run")
    return max(attempts, key=lambda attempt: attempt["number"])["uid"]


def _run(
    session: Session, uid: str, argv: tuple[str, ...], *, tty: bool, stdin: bool
) -> tuple[int, str]:
    """Start the program and attach to it; end the session unless the program has ended."""
    rows, columns = (size_of_terminal() if tty else None) or (0, 0)
    started = session.start_exec(uid, argv, tty=tty, stdin=stdin, rows=rows, columns=columns)
    is_over = False
    try:
        found = attach(load_settings(), started["uid"], has_tty=tty, has_stdin=stdin)
        is_over = True
        return found
    except ClientError as fault:
        is_over = True
        raise _explained(session, started["uid"], fault) from None
    finally:
        if not is_over:
            _end(session, started["uid"])


def _explained(session: Session, uid: str, fault: ClientError) -> ClientError:
    """Return the reason why a session ended, in the words of the API if it has some."""
    try:
        reason = session.exec_session(uid)["reason"]
    except ClientError:
        return fault
    return ClientError(f"the session is over: {reason}") if reason else fault


def _end(session: Session, uid: str) -> None:
    """End the session of an interrupted command, so that its program does not wait for it."""
    try:
        session.end_exec(uid)
    except (ApiError, ClientError):
        return
