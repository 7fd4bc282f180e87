"""What Ctrl-C does while a command waits for a job: prompt, cancel it, or leave it running."""

from collections.abc import Callable, Sequence
from typing import NoReturn, TypeVar

import typer

from cellrun.api.session import Session
from cellrun.display.terminal import is_terminal, stderr
from cellrun.documents import Job
from cellrun.errors import EXIT_INTERRUPTED
from cellrun.states import TERMINAL_STATES

T = TypeVar("T")


def prompt_at_interrupt(
    session: Session, job: Job, wait: Callable[[], T], *, cancels: bool = False
) -> T:
    """Print the job, and return the result of `wait`.

    At Ctrl-C, prompt on a terminal whether to cancel the job. `cancels`: without a terminal, cancel
    it; otherwise it continues.
    """
    job_id = job["id"]
    try:
        # Within the try: an interrupt just after the number of the job gets the prompt, too.
        stderr().print(f"job {job_id} ({job['name']})")
        return wait()
    except KeyboardInterrupt:
        if _is_cancelled(job_id) if is_terminal() else cancels:
            answer = session.cancel_job(job_id, reason="interrupted at the terminal")
            is_over = answer is not None and answer["state"] in TERMINAL_STATES
            state = "is killed" if is_over else "is being cancelled"
            stderr().print(f"job {job_id} {state}")
        else:
            _print_commands([job_id])
        raise typer.Exit(EXIT_INTERRUPTED) from None


def explain_interrupt(job_ids: Sequence[int], wait: Callable[[], T]) -> T:
    """Return the result of `wait`. At Ctrl-C, print how to continue; the jobs are not changed."""
    try:
        return wait()
    except KeyboardInterrupt:
        _leave(job_ids)


def _leave(job_ids: Sequence[int]) -> NoReturn:
    stderr().print()
    _print_commands(job_ids)
    raise typer.Exit(EXIT_INTERRUPTED) from None


def _is_cancelled(job_id: int) -> bool:
    """Return whether the user wants to cancel the job; a second Ctrl-C leaves it running."""
    stderr().print(f"\nCancel job {job_id}? Otherwise it continues to run. [y/N] ", end="")
    try:
        return input().strip().lower() in ("y", "yes")
    except (EOFError, KeyboardInterrupt):
        stderr().print()
        return False


def _print_commands(job_ids: Sequence[int]) -> None:
    for job_id in job_ids:
        stderr().print(
            f"job {job_id} continues: `cellrun logs -f {job_id}` follows it,"
            f" `cellrun cancel {job_id}` cancels it"
        )
