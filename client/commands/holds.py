"""`cellrun hold`, `release`, `project hold`, `project release`: keep work from being placed."""

from collections.abc import Callable, Iterable
from typing import Annotated

import typer

from client.commands.projects import ProjectName, projects
from client.documents import Hold, Job, ProjectHold
from client.render import hold_text
from client.session import connect
from client.terminal import JsonFlag, show, show_json, stdout

JobIds = Annotated[list[int], typer.Argument(metavar="ID...", help="Ids of jobs.")]
HoldReason = Annotated[str, typer.Option(help="Reason, shown as the reason of waiting tasks.")]
ReleaseReason = Annotated[str, typer.Option(help="Reason, recorded in the history.")]


def hold(job_ids: JobIds, reason: HoldReason, as_json: JsonFlag = False) -> None:
    """Hold jobs: no waiting task is placed until `cellrun release`; running tasks continue.

    The time in a hold does not count for the scheduling timeout.
    """
    with connect() as session:
        _each(job_ids, lambda job_id: session.hold_job(job_id, reason=reason), as_json)


def release(job_ids: JobIds, reason: ReleaseReason = "", as_json: JsonFlag = False) -> None:
    """Release jobs from their holds, so that their waiting tasks may be placed."""
    with connect() as session:
        _each(job_ids, lambda job_id: session.release_job(job_id, reason=reason), as_json)


@projects.command("hold")
def hold_project(name: ProjectName, reason: HoldReason, as_json: JsonFlag = False) -> None:
    """Hold all jobs of a project, also later ones, until `project release` (managers)."""
    with connect() as session:
        found = session.hold_project(name, reason=reason)
    holds = [found["hold"]] if found["hold"] else []
    show(as_json, found, f"project {found['name']}: {_describe(holds)}")


@projects.command("release")
def release_project(
    name: ProjectName, reason: ReleaseReason = "", as_json: JsonFlag = False
) -> None:
    """Release a project from its hold (managers). Jobs that are held themselves stay held."""
    with connect() as session:
        found = session.release_project(name, reason=reason)
    show(as_json, found, f"project {found['name']} is released")


def _each(job_ids: Iterable[int], change: Callable[[int], Job], as_json: bool) -> None:
    """Change the jobs one by one; stop at the first one that is refused."""
    changed = []
    for job_id in job_ids:
        job = change(job_id)
        changed.append(job)
        if not as_json:
            stdout().print(f"job {job_id} ({job['name']}): {_describe(job['holds'])}")
    if as_json:
        show_json(changed)


def _describe(holds: Iterable[Hold | ProjectHold]) -> str:
    return "; ".join(hold_text(hold) for hold in holds) or "released"
