"""`cellrun cancel`, `retry`, `delete`, `release-attempt`: change jobs and attempts."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from cellrun.addresses import find_job_id
from cellrun.api.bulk import Action
from cellrun.api.session import Session, connect
from cellrun.commands.jobs.bulk import (
    LabelFilter,
    NameFilter,
    PoolFilter,
    ProjectFilter,
    StateFilter,
    change_matching,
    read_filter,
)
from cellrun.display.output import TABLE, Output, OutputOption, show, show_document
from cellrun.display.render import finished_count
from cellrun.display.terminal import JobsOrFilter, agrees, show_error, stdout
from cellrun.documents import Job
from cellrun.errors import EXIT_FAILED, EXIT_TROUBLE, ApiError, BadInput
from cellrun.states import TERMINAL_STATES

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def cancel(
    jobs: JobsOrFilter = None,
    reason: Annotated[str, typer.Option(help="Reason, recorded in the history.")] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Kill containers at once, without a grace period.")
    ] = False,
    project: ProjectFilter = None,
    pool: PoolFilter = None,
    name: NameFilter = None,
    label: LabelFilter = None,
    state: StateFilter = None,
    yes: Yes = False,
    output: OutputOption = TABLE,
) -> None:
    """Cancel jobs: their open tasks end as KILLED.

    A filter, for example --label sweep=7, cancels all open jobs that match: it shows them, asks,
    and needs --reason.
    """
    if not jobs:
        if force:
            raise BadInput("--force: takes jobs, not a filter")
        _change_matching("cancel", (project, pool, name, label, state), reason, yes, output)
        return
    _refuse_filter(project, pool, name, label, state)

    def change(session: Session, job_id: int) -> tuple[Job, str]:
        answer = session.cancel_job(job_id, reason=reason, force=force) or session.job(job_id)
        return answer, _describe_cancelled(answer, job_id)

    _each(jobs, change, output)


def retry(
    jobs: JobsOrFilter = None,
    key: Annotated[
        str | None, typer.Option(help="Guid of the new job; the same key returns the same job.")
    ] = None,
    reason: Annotated[
        str, typer.Option(help="Reason of a retry by a filter, in the audit log.")
    ] = "",
    project: ProjectFilter = None,
    pool: PoolFilter = None,
    name: NameFilter = None,
    label: LabelFilter = None,
    state: StateFilter = None,
    yes: Yes = False,
    output: OutputOption = TABLE,
) -> None:
    """Create a new job from the tasks that did not succeed, for each of these jobs.

    A filter, for example --label sweep=7, retries all ended jobs that match: it shows them, asks,
    and needs --reason.
    """
    if key is not None and (jobs is None or len(jobs) != 1):
        raise BadInput("--key: takes one job")
    if not jobs:
        _change_matching("retry", (project, pool, name, label, state), reason, yes, output)
        return
    _refuse_filter(project, pool, name, label, state)

    def change(session: Session, job_id: int) -> tuple[Job, str]:
        made = session.retry_job(job_id, key=key)
        _, total = finished_count(made)
        tasks = "1 task" if total == 1 else f"{total} tasks"
        return made, f"job {made['id']} ({made['name']}) retries {tasks} of job {job_id}"

    _each(jobs, change, output)


def delete(
    jobs: JobsOrFilter = None,
    reason: Annotated[
        str, typer.Option(help="Reason of a deletion by a filter, in the audit log.")
    ] = "",
    project: ProjectFilter = None,
    pool: PoolFilter = None,
    name: NameFilter = None,
    label: LabelFilter = None,
    state: StateFilter = None,
    yes: Yes = False,
    output: OutputOption = TABLE,
) -> None:
    """Delete jobs that have ended, with their tasks, history and output. This cannot be undone.

    A filter, for example --label sweep=7, deletes all ended jobs that match: it shows them, asks,
    and needs --reason.
    """
    if not jobs:
        _change_matching("delete", (project, pool, name, label, state), reason, yes, output)
        return
    _refuse_filter(project, pool, name, label, state)

    def change(session: Session, job_id: int) -> tuple[Job, str]:
        job = session.job(job_id)
        named = f"job {job_id} ({job['name']}, {job['state'].lower()})"
        if not yes and not agrees(f"Delete {named} with its tasks, history and output?"):
            raise typer.Exit(EXIT_FAILED)
        session.delete_job(job_id)
        return job, f"job {job_id} is deleted"

    _each(jobs, change, output)


def release_attempt(
    uid: Annotated[str, typer.Argument(metavar="ATTEMPT", help="Uid of an attempt.")],
    reason: Annotated[str, typer.Option(help="Reason, recorded in the history.")],
    output: OutputOption = TABLE,
) -> None:
    """Release an ended attempt whose container is gone, so that its task may run again (operators).

    The cell is not involved: if the container still runs, the task may run twice.
    """
    with connect(is_operator=True) as session:
        attempt = session.release_attempt(uid, reason=reason)
    show(output, attempt, f"attempt {attempt['uid']} is released")


def _each(
    jobs: Sequence[str], change: Callable[[Session, int], tuple[Job, str]], output: Output
) -> None:
    """Change the jobs one by one. Exit with EXIT_TROUBLE if the server refused some of several.

    All of them are found first, so that a wrong name changes nothing.
    """
    documents, refused = [], False
    with connect() as session:
        for job_id in dict.fromkeys([find_job_id(session, job) for job in jobs]):
            try:
                document, text = change(session, job_id)
            except ApiError as fault:
                if len(jobs) == 1:
                    raise
                show_error(fault, f"job {job_id}: ")
                refused = True
                continue
            documents.append(document)
            if not output.is_document:
                stdout().print(text)
    if output.is_document:
        show_document(output, documents[0] if len(jobs) == 1 else documents)
    if refused:
        raise typer.Exit(EXIT_TROUBLE)


def _describe_cancelled(answer: Job, job_id: int) -> str:
    state = answer["state"].lower()
    if answer["state"] not in TERMINAL_STATES:
        return f"job {job_id} is being cancelled"
    if state != "killed":
        return f"job {job_id} has already ended: it is {state}"
    if answer.get("settled_at") is None:
        return f"job {job_id} is killed; its running attempts are being stopped"
    return f"job {job_id} is killed"


def _change_matching(
    action: Action, options: tuple[Any, ...], reason: str, yes: bool, output: Output
) -> None:
    """Change all jobs that a filter selects. Raise BadInput without a filter."""
    if not any(options):
        raise BadInput(f"name the jobs to {action}, or a filter such as --label NAME=VALUE")
    change_matching(action, read_filter(*options), reason, yes=yes, output=output)


def _refuse_filter(*options: Any) -> None:
    if any(options):
        raise BadInput("name jobs or give a filter, not both")
