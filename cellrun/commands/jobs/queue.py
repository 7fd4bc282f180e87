"""`cellrun queue`, `hold`, `release`, `move`, `project hold`, `project release`: what waits."""

from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

import typer
from rich.console import RenderableType

from cellrun.addresses import find_job_id
from cellrun.api.session import Session, connect
from cellrun.commands.tenancy.projects import ProjectName, projects
from cellrun.display.listing import Listing, new_table
from cellrun.display.live import WatchOption, show_or_watch
from cellrun.display.output import TABLE, Output, OutputOption, show, show_document
from cellrun.display.render import hold_text, instant_text
from cellrun.display.terminal import JobAddress, JobAddresses, stdout
from cellrun.documents import Hold, Job, ProjectHold, QueueEntry
from cellrun.errors import BadInput

HoldReason = Annotated[str, typer.Option(help="Reason, shown as the reason of waiting tasks.")]
ReleaseReason = Annotated[str, typer.Option(help="Reason, recorded in the history.")]


def queue(
    pool: Annotated[str, typer.Argument(metavar="[POOL]", help="Name of a pool.")] = "default",
    limit: Annotated[int, typer.Option(min=1, help="Show this many groups.")] = 50,
    is_watching: WatchOption = False,
    output: OutputOption = TABLE,
) -> None:
    """Show the groups that wait in a pool, in the order in which the next pass considers them.

    Groups of projects that you may not read have a position, but are not shown.
    """
    with connect() as session:

        def load() -> tuple[Any, RenderableType]:
            found = list(session.queue(pool, limit=limit))
            nothing = f"nothing that you may read waits in pool {pool}"
            return found, _queue_table(found) if found else nothing

        show_or_watch(output, load, is_watching=is_watching)


def _queue_table(entries: Iterable[QueueEntry]) -> Listing:
    table = new_table(
        *("POSITION", "JOB", "GROUP", "BAND", "WAITING", "SINCE", "REASON"),
        wide=("OWNER", "PROJECT", "SHARE"),
    )
    for entry in entries:
        moved = " (moved)" if entry["rank"] else ""
        table.add_row(
            str(entry["position"]),
            f"{entry['job']} {entry['name']}{moved}",
            entry["group"],
            entry["band"],
            str(entry["waiting"]),
            instant_text(entry["since"]),
            entry["reason"]["text"] if entry["reason"] else "",
            entry["owner"],
            entry["project"],
            f"{entry['share']:.0%}",
        )
    return table


def hold(jobs: JobAddresses, reason: HoldReason, output: OutputOption = TABLE) -> None:
    """Hold jobs: no waiting task is placed until `cellrun release`; running tasks continue.

    The time in a hold does not count for the scheduling timeout.
    """
    with connect() as session:
        _each(session, jobs, lambda job_id: session.hold_job(job_id, reason=reason), output)


def release(jobs: JobAddresses, reason: ReleaseReason = "", output: OutputOption = TABLE) -> None:
    """Release jobs from their holds, so that their waiting tasks may be placed."""
    with connect() as session:
        _each(session, jobs, lambda job_id: session.release_job(job_id, reason=reason), output)


def move(
    address: JobAddress,
    to: Annotated[Literal["front", "end"] | None, typer.Option(help="The end of its band.")] = None,
    band: Annotated[
        Literal["production", "interactive", "batch"] | None, typer.Option(help="The new band.")
    ] = None,
    reason: ReleaseReason = "",
    output: OutputOption = TABLE,
) -> None:
    """Move a job to the front or the end of its band, or to another band.

    If the pool orders the jobs of all owners in one line, only operators may move one to the front.
    """
    if to is None and band is None:
        raise BadInput("--to or --band is missing")
    with connect() as session:
        job = session.move_job(find_job_id(session, address), to=to, band=band, reason=reason)
    place = f"at the {to} of" if to else "in"
    show(output, job, f"job {job['id']} ({job['name']}) is {place} band {job['band']}")


@projects.command("hold")
def hold_project(name: ProjectName, reason: HoldReason, output: OutputOption = TABLE) -> None:
    """Hold all jobs of a project, also later ones, until `project release` (managers)."""
    with connect() as session:
        found = session.hold_project(name, reason=reason)
    holds = [found["hold"]] if found["hold"] else []
    show(output, found, f"project {found['name']}: {_describe(holds)}")


@projects.command("release")
def release_project(
    name: ProjectName, reason: ReleaseReason = "", output: OutputOption = TABLE
) -> None:
    """Release a project from its hold (managers). Jobs that are held themselves stay held."""
    with connect() as session:
        found = session.release_project(name, reason=reason)
    show(output, found, f"project {found['name']} is released")


def _each(
    session: Session, jobs: Iterable[str], change: Callable[[int], Job], output: Output
) -> None:
    """Change the jobs one by one; stop at the first one that is refused."""
    changed = []
    for job_id in [find_job_id(session, job) for job in jobs]:
        job = change(job_id)
        changed.append(job)
        if not output.is_document:
            stdout().print(f"job {job_id} ({job['name']}): {_describe(job['holds'])}")
    if output.is_document:
        show_document(output, changed)


def _describe(holds: Iterable[Hold | ProjectHold]) -> str:
    return "; ".join(hold_text(hold) for hold in holds) or "released"
