"""Show a result again whenever it changes, until the user interrupts."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from cellrun.display.output import Output, fitted, show
from cellrun.display.terminal import show_error, stdout
from cellrun.errors import ApiError, BadInput, ClientError, Unreachable

REFRESH_SECONDS = 2.0
_SERVER_ERROR = 500

Load = Callable[[], tuple[Any, RenderableType]]
"""Returns a document, and the document drawn for a person."""

WatchOption = Annotated[
    bool, typer.Option("-w", "--watch", help="Show the result again while it changes, to Ctrl-C.")
]


def show_or_watch(output: Output, load: Load, *, is_watching: bool) -> None:
    """Show a result once, or every two seconds until the user interrupts. Raise BadInput."""
    if not is_watching:
        show(output, *load())
        return
    if output.is_document:
        raise BadInput("--watch: not with --output json, yaml, name or jsonpath; see `events`")
    try:
        watch(output, load)
    except KeyboardInterrupt:
        return


def watch(output: Output, load: Load) -> None:
    """Redraw a terminal, or print each result that differs from the one before; never return."""
    console = stdout()
    if not console.is_terminal:
        _print_changes(output, load, console)
    with Live(console=console, screen=True, auto_refresh=False) as screen:
        drawn: RenderableType = ""
        while True:
            failure = ""
            try:
                _, drawn = load()
            except ClientError as fault:
                if not _may_pass(fault):
                    raise
                failure = f"; {fault.lines()[0]}; the next try follows"
            now = datetime.now(UTC).astimezone()
            at = f"{now:%H:%M:%S}, every {REFRESH_SECONDS:g} s, Ctrl-C to end"
            head = Text(at + failure, style="dim")
            wide = output.form == "wide"
            screen.update(Group(head, fitted(drawn, is_wide=wide)), refresh=True)
            time.sleep(REFRESH_SECONDS)


def _print_changes(output: Output, load: Load, console: Console) -> None:
    printed = None
    while True:
        try:
            document, drawn = load()
        except ClientError as fault:
            if not _may_pass(fault):
                raise
            show_error(fault)
        else:
            if document != printed:
                show(output, document, drawn)
                printed = document
        time.sleep(REFRESH_SECONDS)


def _may_pass(fault: ClientError) -> bool:
    is_of_server = isinstance(fault, ApiError) and fault.status >= _SERVER_ERROR
    return is_of_server or isinstance(fault, Unreachable)
