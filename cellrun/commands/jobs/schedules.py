"""`cellrun schedule`: submit a job at each instant of a cron expression."""

from datetime import datetime
from typing import Annotated, Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer
from rich.console import Group

from cellrun.api.session import connect
from cellrun.display.listing import new_table
from cellrun.display.output import TABLE, OutputOption, show
from cellrun.display.render import instant_text
from cellrun.display.terminal import agrees, is_terminal, stdout
from cellrun.errors import EXIT_FAILED, BadInput
from cellrun.spec_file import read_spec

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the schedule.")]
Project = Annotated[
    str | None,
    typer.Option(
        metavar="PROJECT",
        help="Project of the schedule, as name or domain/name. Default: default/default, or your"
        " only project.",
    ),
]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Recorded in the audit log.")]
SHOWN = 20

app = typer.Typer(
    help="Submit a job at each instant of a cron expression.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("list")
def list_schedules(project: Project = None, output: OutputOption = TABLE) -> None:
    """List the schedules of a project, with their next instants."""
    with connect() as session:
        found = session.schedules(project=project)
    table = new_table(
        "SCHEDULE", "CRON", "NEXT", "OWNER", wide=("TIME ZONE", "OVERLAP", "CATCH-UP")
    )
    table.columns[1].no_wrap = True
    for item in found:
        table.add_row(
            item["name"],
            item["cron"],
            _next(item),
            item["owner"],
            item["time_zone"],
            item["overlap"],
            item["catch_up"],
        )
    show(output, found, table if found else "no schedules")


@app.command("show")
def show_schedule(name: Name, project: Project = None, output: OutputOption = TABLE) -> None:
    """Show a schedule, and what became of its last instants."""
    with connect() as session:
        found = session.schedule(name, project=project)
        firings = list(session.firings(name, limit=SHOWN, project=project))
    history = new_table("INSTANT", "OUTCOME", "JOB", "WHY")
    for firing in firings:
        job = "" if firing["job"] is None else str(firing["job"])
        at = _in_zone(firing["at"], found["time_zone"])
        history.add_row(at, firing["outcome"], job, firing["text"])
    page = Group(
        f"schedule {found['name']} of {found['project']}: {found['cron']} ({found['time_zone']})",
        f"overlap: {found['overlap']}, catch-up: {found['catch_up']}, owner: {found['owner']}",
        f"next: {_next(found)}\n",
        history if firings else "no instant has passed yet",
    )
    show(output, {**found, "firings": firings}, page)


@app.command("set")
def set_schedule(
    name: Name,
    source: Annotated[
        str, typer.Argument(metavar="FILE|-", help="The job in YAML or JSON; - is standard input.")
    ],
    cron: Annotated[
        str,
        typer.Option(metavar="CRON", help="Such as '30 2 * * MON-FRI', or @daily."),
    ],
    time_zone: Annotated[str, typer.Option(metavar="ZONE", help="Such as Europe/Berlin.")] = "UTC",
    overlap: Annotated[
        str,
        typer.Option(
            metavar="RULE",
            help="While a job of the schedule has not finished: allow, skip, replace or queue.",
        ),
    ] = "skip",
    catch_up: Annotated[
        str,
        typer.Option(metavar="RULE", help="Missed instants that start a job: latest, all or none."),
    ] = "latest",
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Change a field of the job."),
    ] = None,
    paused: Annotated[bool, typer.Option("--paused", help="Fire no instant yet.")] = False,
    project: Project = None,
    output: OutputOption = TABLE,
) -> None:
    """Create or replace a schedule. You become its owner, and own its jobs."""
    body = {
        "cron": cron,
        "time_zone": time_zone,
        "overlap": overlap,
        "catch_up": catch_up,
        "paused": paused,
        "job": read_spec(source, changes or []),
    }
    with connect() as session:
        found = session.put_schedule(name, body, project=project)
    show(output, found, f"schedule {name}: next {_next(found)}")


@app.command(
    "create",
    hidden=True,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
def create() -> None:
    """Name the command that creates schedules."""
    raise BadInput("`cellrun schedule set NAME FILE --cron CRON` creates or replaces a schedule")


@app.command()
def pause(
    name: Name, reason: Reason = "", project: Project = None, output: OutputOption = TABLE
) -> None:
    """Fire no instant until the schedule is resumed."""
    with connect() as session:
        found = session.pause_schedule(name, reason=reason, project=project)
    show(output, found, f"schedule {name} is paused")


@app.command()
def resume(
    name: Name, reason: Reason = "", project: Project = None, output: OutputOption = TABLE
) -> None:
    """Fire again, beginning with the next instant."""
    with connect() as session:
        found = session.resume_schedule(name, reason=reason, project=project)
    show(output, found, f"schedule {name}: next {_next(found)}")


@app.command()
def run(name: Name, project: Project = None, output: OutputOption = TABLE) -> None:
    """Submit the job now, whatever the calendar and the overlap rule."""
    with connect() as session:
        found = session.run_schedule(name, project=project)
    show(output, found, f"job {found['id']} ({found['name']})")


@app.command()
def delete(
    name: Name,
    project: Project = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete a schedule with its history. Its jobs stay."""
    if not yes:
        if not is_terminal():
            raise BadInput("standard input is not a terminal: confirm with --yes")
        if not agrees(f"Delete the schedule {name}?"):
            raise typer.Exit(EXIT_FAILED)
    with connect() as session:
        session.delete_schedule(name, project=project)
    stdout().print(f"schedule {name} is deleted")


def _next(schedule: Any) -> str:
    if schedule["paused"]:
        because = schedule["paused_because"]
        return f"paused: {because}" if because else "paused"
    return _in_zone(schedule["next_at"], schedule["time_zone"])


def _in_zone(instant: str | None, zone: str) -> str:
    """Return an instant by the clocks of the schedule, with the zone: "… 02:30:00 CET"."""
    if instant is None:
        return "never"
    try:
        there = ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError):  # this machine does not know the zone
        return instant_text(instant)
    return datetime.fromisoformat(instant).astimezone(there).strftime("%Y-%m-%d %H:%M:%S %Z")
