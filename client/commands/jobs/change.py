"""`cellrun cancel`, `retry`, `delete`, `release-attempt`: change jobs and attempts."""

from typing import Annotated

import typer

from client.api.session import connect
from client.display.render import finished_count
from client.display.terminal import JsonFlag, agrees, show
from client.errors import EXIT_FAILED
from client.states import TERMINAL_STATES


def cancel(
    job_id: Annotated[int, typer.Argument(metavar="ID", help="Id of a job.")],
    reason: Annotated[str, typer.Option(help="Reason, recorded in the history.")] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Kill containers at once, without a grace period.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Cancel a job: its open tasks end as KILLED."""
    with connect() as session:
        answer = session.cancel_job(job_id, reason=reason, force=force) or session.job(job_id)
    state = answer["state"].lower()
    if answer["state"] not in TERMINAL_STATES:
        text = f"job {job_id} is being cancelled"
    elif state != "killed":
        text = f"job {job_id} has already ended: it is {state}"
    elif answer.get("settled_at") is None:
        text = f"job {job_id} is killed; its running attempts are being stopped"
    else:
        text = f"job {job_id} is killed"
    show(as_json, answer, text)


def retry(
    job_id: Annotated[int, typer.Argument(metavar="ID", help="Id of a job.")],
    key: Annotated[
        str | None, typer.Option(help="Guid of the new job; the same key returns the same job.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Create a new job from the tasks of a job that did not succeed."""
    with connect() as session:
        made = session.retry_job(job_id, key=key)
    _, total = finished_count(made)
    tasks = "1 task" if total == 1 else f"{total} tasks"
    show(as_json, made, f"job {made['id']} ({made['name']}) retries {tasks} of job {job_id}")


def delete(
    job_id: Annotated[int, typer.Argument(metavar="ID", help="Id of a job.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Delete a job that has ended, with its tasks, history and output. This cannot be undone."""
    with connect() as session:
        job = session.job(job_id)
        named = f"job {job_id} ({job['name']}, {job['state'].lower()})"
        if not yes and not agrees(f"Delete {named} with its tasks, history and output?"):
            raise typer.Exit(EXIT_FAILED)
        session.delete_job(job_id)
    show(as_json, job, f"job {job_id} is deleted")


def release_attempt(
    uid: Annotated[str, typer.Argument(metavar="ATTEMPT", help="Uid of an attempt.")],
    reason: Annotated[str, typer.Option(help="Reason, recorded in the history.")],
    as_json: JsonFlag = False,
) -> None:
    """Release an ended attempt whose container is gone, so that its task may run again (operators).

    The cell is not involved: if the container still runs, the task may run twice.
    """
    with connect() as session:
        attempt = session.release_attempt(uid, reason=reason)
    show(as_json, attempt, f"attempt {attempt['uid']} is released")
