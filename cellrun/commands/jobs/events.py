"""`cellrun events`: print changes of jobs and tasks as they happen."""

import json
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

import typer
from rich.text import Text

from cellrun.addresses import find_job
from cellrun.api.events import StateChange
from cellrun.api.session import connect
from cellrun.commands.jobs.logs import read_instant
from cellrun.display.output import TABLE, Output, OutputOption, show_document
from cellrun.display.render import instant_text, state_text
from cellrun.display.terminal import stderr, stdout
from cellrun.display.visible import print_line, visible_json
from cellrun.errors import ClientError

# Of past changes, if no time is given.
_PAST = timedelta(hours=1)


def events(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[JOB]...",
            help="Ids of jobs, names (the newest job of that name) or guids; default: all jobs that"
            " you may read.",
        ),
    ] = None,
    project: Annotated[
        str | None, typer.Option(metavar="DOMAIN/NAME", help="Only changes of this project.")
    ] = None,
    kind: Annotated[
        Literal["job", "task"] | None,
        typer.Option(help="Only changes of jobs themselves, or of tasks."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Begin with the changes of 10m or 2h ago, or since 2031-05-04T12:00:00Z; at most"
            " 24 hours ago.",
        ),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow/--no-follow",
            help="Print new changes until Ctrl-C, or only the past ones, by default of an hour.",
        ),
    ] = True,
    output: OutputOption = TABLE,
) -> None:
    """Print changes of states of jobs and tasks, one line for each, as they happen.

    After an interruption the command connects again and continues, so that no change is missing. A
    change may be printed twice then. With -o json each line is a document.
    """
    now = datetime.now(UTC)
    begin = None if since is None else read_instant(since, now)
    if begin is None and not follow:
        begin = now - _PAST
    is_lost = False

    def note_trouble(fault: ClientError) -> None:
        nonlocal is_lost
        if not is_lost:
            stderr().print(Text(f"{fault}; connecting again"))
        is_lost = True

    with connect() as session:
        ids = [find_job(session, job)["id"] for job in jobs or ()]
        changes = session.events(
            jobs=ids,
            project=project,
            kind=kind,
            since=None if begin is None else begin.isoformat().replace("+00:00", "Z"),
            follow=follow,
            on_trouble=note_trouble,
        )
        with changes:
            for change in changes:
                is_lost = False
                _print_change(change, output)


def _print_change(change: StateChange, output: Output) -> None:
    address = change.task or str(change.job)
    match output.form:
        case "json":
            print_line(visible_json(json.dumps(change.document, ensure_ascii=False)))
        case "yaml":
            print_line("---")
            show_document(output, change.document)
        case "name":
            print_line(address)
        case "jsonpath":
            show_document(output, change.document)
        case _:
            stdout().print(_line_of(change, address))


def _line_of(change: StateChange, address: str) -> Text:
    subject = address if change.kind == "task" else f"job {change.job}"
    before = () if change.before is None else (state_text(change.before), " → ")
    return Text.assemble(
        f"{instant_text(change.at)}  {subject}  ",
        *before,
        state_text(change.after),
        f"  {change.document.get('text') or change.reason}",
    )
