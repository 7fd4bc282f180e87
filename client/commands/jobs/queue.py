"""`cellrun queue`, `hold`, `release`, `move`, `project hold`, `project release`: what waits."""

from collections.abc import Callable, Iterable
from typing import Annotated, Literal

import typer

from client.addresses import find_job_id
from client.api.session import Session, connect
from client.commands.tenancy.projects import ProjectName, projects
from client.display.render import hold_text, instant_text, new_table
from client.display.terminal import JobAddress, JobAddresses, JsonFlag, show, show_json, stdout
from client.documents import Hold, Job, ProjectHold
from client.errors import BadInput

HoldReason = Annotated[str, typer.Option(help="Reason, shown as the reason of waiting tasks.")]
ReleaseReason = Annotated[str, typer.Option(help="Reason, recorded in the history.")]


def queue(
    pool: Annotated[str, typer.Argument(metavar="[POOL]", help="Name of a pool.")] = "default",
    limit: Annotated[int, typer.Option(min=1, help="Show this many groups.")] = 50,
    as_json: JsonFlag = False,
) -> None:
    """Show the groups that wait in a pool, in the order in which the next pass considers them.

    Groups of projects that you may not read have a position, but are not shown.
    """
    with connect() as session:
        found = list(session.queue(pool, limit=limit))
    table = new_table(
        *("POSITION", "JOB", "GROUP", "BAND", "WAITING", "SINCE", "OWNER", "PROJECT", "SHARE"),
        "REASON",
    )
    for entry in found:
        moved = " (moved)" if entry["rank"] else ""
        table.add_row(
            str(entry["position"]),
            f"{entry['job']} {entry['name']}{moved}",
            entry["group"],
            entry["band"],
            str(entry["waiting"]),
            instant_text(entry["since"]),
            entry["owner"],
            entry["project"],
            f"{entry['share']:.0%}",
            entry["reason"]["text"] if entry["reason"] else "",
        )
    show(as_json, found, table if found else f"nothing that you may read waits in pool {pool}")


def hold(jobs: JobAddresses, reason: HoldReason, as_json: JsonFlag = False) -> None:
    """Hold jobs: no waiting task is placed until `cellrun release`; running tasks continue.

    The time in a hold does not count for the scheduling timeout.
    """
    with connect() as session:
        _each(session, jobs, lambda job_id: session.hold_job(job_id, reason=reason), as_json)


def release(jobs: JobAddresses, reason: ReleaseReason = "", as_json: JsonFlag = False) -> None:
    """Release jobs from their holds, so that their waiting tasks may be placed."""
    with connect() as session:
        _each(session, jobs, lambda job_id: session.release_job(job_id, reason=reason), as_json)


def move(
    address: JobAddress,
    to: Annotated[Literal["front", "end"] | None, typer.Option(help="The end of its band.")] = None,
    band: Annotated[
        Literal["production", "interactive", "batch"] | None, typer.Option(help="The new band.")
    ] = None,
    reason: ReleaseReason = "",
    as_json: JsonFlag = False,
) -> None:
    """Move a job to the front or the end of its band, or to another band.

    If the pool orders the jobs of all owners in one line, only operators may move one to the front.
    """
    if to is None and band is None:
        raise BadInput("--to or --band is missing")
    with connect() as session:
        job = session.move_job(find_job_id(session, address), to=to, band=band, reason=reason)
    place = f"at the {to} of" if to else "in"
    show(as_json, job, f"job {job['id']} ({job['name']}) is {place} band {job['band']}")


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


def _each(
    session: Session, jobs: Iterable[str], change: Callable[[int], Job], as_json: bool
) -> None:
    """Change the jobs one by one; stop at the first one that is refused."""
    changed = []
    for job_id in [find_job_id(session, job) for job in jobs]:
        job = change(job_id)
        changed.append(job)
        if not as_json:
            stdout().print(f"job {job_id} ({job['name']}): {_describe(job['holds'])}")
    if as_json:
        show_json(changed)


def _describe(holds: Iterable[Hold | ProjectHold]) -> str:
    return "; ".join(hold_text(hold) for hold in holds) or "released"
