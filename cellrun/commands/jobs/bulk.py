"""`cellrun bulk`: cancel, retry, delete, hold or release all jobs that a filter selects."""

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cellrun.api.bulk import Action
from cellrun.api.polling import PollInterval, beats
from cellrun.api.session import Session, connect
from cellrun.display.bulk import (
    end_text,
    jobs_text,
    operation_page,
    operation_table,
    preview_page,
    progress_text,
    refusal_table,
)
from cellrun.display.output import TABLE, Output, OutputOption, show, show_document
from cellrun.display.terminal import agrees, is_terminal, stderr, stdout
from cellrun.documents import BulkOperation
from cellrun.errors import EXIT_FAILED, BadInput, ClientError

OperationId = Annotated[
    int, typer.Argument(metavar="ID", help="Id of a bulk operation, as in `cellrun bulk list`.")
]

ProjectFilter = Annotated[
    str | None,
    typer.Option(metavar="PROJECT", help="Only jobs of this project, as name or domain/name."),
]
PoolFilter = Annotated[str | None, typer.Option(help="Only jobs of this pool.")]
NameFilter = Annotated[str | None, typer.Option(help="Only jobs with this whole name.")]
LabelFilter = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=VALUE", help="Only jobs with this label; repeatable."),
]
StateFilter = Annotated[
    list[str] | None,
    typer.Option(metavar="STATE", help="Only jobs in this state, for example running; repeatable."),
]

app = typer.Typer(
    help="Cancel, retry, delete, hold or release all jobs that match a filter.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def _add_action(action: Action, text: str) -> None:
    """Add the command of an action. All of them have the same options."""

    @app.command(action, help=text)
    def run(
        reason: Annotated[
            str | None, typer.Option(help="Reason, recorded in the history and the audit log.")
        ] = None,
        project: ProjectFilter = None,
        pool: PoolFilter = None,
        name: NameFilter = None,
        label: LabelFilter = None,
        state: StateFilter = None,
        is_dry_run: Annotated[
            bool, typer.Option("--dry-run", help="Show the jobs, and change nothing.")
        ] = False,
        yes: Annotated[
            bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")
        ] = False,
        is_detached: Annotated[
            bool, typer.Option("--no-wait", help="Start the operation, and do not follow it.")
        ] = False,
        output: OutputOption = TABLE,
    ) -> None:
        jobs = read_filter(project, pool, name, label, state)
        if is_dry_run:
            with connect() as session:
                found = session.preview_bulk(action, jobs)
            show(output, found, preview_page(action, found))
            return
        change_matching(action, jobs, reason, yes=yes, is_detached=is_detached, output=output)


_add_action("cancel", "Cancel the open jobs that match: their tasks end as KILLED.")
_add_action("retry", "Create new jobs from the tasks that did not succeed, of ended jobs.")
_add_action("delete", "Delete the ended jobs that match. This cannot be undone.")
_add_action("hold", "Place no waiting task of the open jobs that match; running tasks continue.")
_add_action("release", "Release the jobs that match from their holds.")


@app.command("list")
def list_operations(
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of lines.")] = 20,
    output: OutputOption = TABLE,
) -> None:
    """List your bulk operations, newest first; operators and auditors see all."""
    with connect() as session:
        found = list(session.bulk_operations(limit=limit))
    show(output, found, operation_table(found) if found else "no bulk operations")


@app.command("show")
def show_operation(
    operation_id: OperationId,
    follow_on: Annotated[
        bool, typer.Option("-f", "--follow", help="Follow the progress until the end.")
    ] = False,
    output: OutputOption = TABLE,
) -> None:
    """Show a bulk operation with its progress and the first jobs that refused the action."""
    with connect() as session:
        found = session.bulk_operation(operation_id)
        if follow_on:
            _follow(session, found, output=output)
            return
    show(output, found, operation_page(found))


@app.command("stop")
def stop_operation(operation_id: OperationId, output: OutputOption = TABLE) -> None:
    """Stop a bulk operation: no further job is processed. What it did stays done."""
    with connect() as session:
        found = session.stop_bulk(operation_id)
    show(output, found, end_text(found))


def change_matching(
    action: Action,
    jobs: dict[str, Any],
    reason: str | None,
    *,
    yes: bool,
    is_detached: bool = False,
    output: Output,
) -> None:
    """Show the jobs that a filter selects, ask, and start the operation; follow it to its end."""
    with connect() as session:
        operation = _start(session, action, jobs, _read_reason(reason), yes=yes)
        if is_detached:
            hint = f"bulk operation {operation['id']} runs; {_commands(operation['id'])}"
            show(output, operation, hint)
            return
        _follow(session, operation, output=output)


def read_filter(
    project: str | None,
    pool: str | None,
    name: str | None,
    labels: list[str] | None,
    states: list[str] | None,
) -> dict[str, Any]:
    """Return the filter of a request. Raise BadInput."""
    named: dict[str, str] = {}
    for label in labels or []:
        key, equals, value = label.partition("=")
        if not key or not equals:
            raise BadInput(f"--label {label}: must be NAME=VALUE")
        if named.setdefault(key, value) != value:
            raise BadInput(f"--label: {key} has two values, which no job has")
    fields = {"project": project, "pool": pool, "name": name}
    for field, text in fields.items():
        if text == "":
            raise BadInput(f"--{field}: is empty")
    if not named and all(text is None for text in fields.values()):
        raise BadInput("at least one of --project, --pool, --name and --label is required")
    return {**fields, "labels": named, "states": [state.upper() for state in states or []]}


def _read_reason(reason: str | None) -> str:
    if reason is None or not reason.strip():
        raise BadInput("--reason is missing: a bulk operation needs a reason")
    return reason


def _start(
    session: Session, action: Action, jobs: dict[str, Any], reason: str, *, yes: bool
) -> BulkOperation:
    """Show the jobs, ask, and start the operation. Raise BadInput without a terminal to ask."""
    if not yes and not is_terminal():
        raise BadInput(
            "standard input is not a terminal, so the command cannot ask for confirmation:"
            " check the jobs with --dry-run, then confirm with --yes"
        )
    found = session.preview_bulk(action, jobs)
    if not found["count"] and found["is_whole"]:
        raise ClientError(f"there is no job to {action} that matches and that you may change")
    stderr().print(preview_page(action, found))
    several = "these jobs" if found["is_whole"] else "all jobs that match"
    what = jobs_text(1) if found["count"] == 1 and found["is_whole"] else several
    if not yes and not agrees(f"{action.capitalize()} {what}?"):
        raise typer.Exit(EXIT_FAILED)
    return session.start_bulk(action, jobs, reason=reason)


def _follow(session: Session, operation: BulkOperation, *, output: Output) -> None:
    """Show the progress until the end. Exit with 0 only if all jobs permitted the action."""
    operation_id = operation["id"]
    try:
        ended = _wait_for(partial(session.bulk_operation, operation_id), session, operation)
    except (KeyboardInterrupt, ClientError):
        stderr().print(f"bulk operation {operation_id} may still run; {_commands(operation_id)}")
        raise
    if output.is_document:
        show_document(output, ended)
    else:
        stdout().print(end_text(ended))
        if ended["refusals"]:
            stdout().print(refusal_table(ended))
    if ended["state"] != "done" or ended["refused"]:
        raise typer.Exit(EXIT_FAILED)


def _wait_for(
    read: Callable[[], BulkOperation], session: Session, operation: BulkOperation
) -> BulkOperation:
    """Poll until the operation has ended; show a progress bar on a terminal."""
    console = stderr()
    pace = PollInterval()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal
    ) as progress:
        bar = progress.add_task(f"bulk operation {operation['id']}", total=operation["expected"])
        if not console.is_terminal:
            console.print(f"bulk operation {operation['id']} runs")
        for _ in beats(pace, f"bulk operation {operation['id']}"):
            found = session.patiently(read, pace)
            if found != operation:
                pace.reset()
            operation = found
            processed = found["done"] + found["refused"]
            progress.update(
                bar,
                description=progress_text(found),
                completed=processed,
                total=max(found["expected"], processed),
            )
            if found["state"] != "running":
                return found
    raise AssertionError("beats never end")


def _commands(operation_id: int) -> str:
    return (
        f"`cellrun bulk show {operation_id} --follow` follows it,"
        f" `cellrun bulk stop {operation_id}` stops it"
    )
