"""Shared options and output of the commands: consoles, errors and prompts."""

import sys
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from cellrun.display.visible import visible
from cellrun.errors import ClientError

Deadline = Annotated[
    float | None,
    typer.Option("--deadline", min=0, metavar="SECONDS", help="Stop waiting after this time."),
]

Which = Annotated[
    str,
    typer.Argument(
        metavar="ADDRESS",
        help="JOB, JOB/GROUP.INDEX, JOB/GROUP.INDEX#ATTEMPT or the uid of an attempt. JOB is an id,"
        " a name (the newest job of that name) or a guid.",
    ),
]
IsTask = Annotated[bool, typer.Option("--task", help="ADDRESS is the id or guid of a task.")]
JobAddress = Annotated[
    str,
    typer.Argument(metavar="JOB", help="Id of a job, name (the newest job of that name) or guid."),
]
JobAddresses = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB...", help="Ids of jobs, names (the newest job of that name) or guids."
    ),
]
JobsOrFilter = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[JOB...]",
        help="Ids of jobs, names (the newest job of that name) or guids; or a filter instead.",
    ),
]


class VisibleConsole(Console):
    """A console that escapes control characters, except those of its own styles."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as usual, then escape. Control segments come from rich itself."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(visible(segment.text), segment.style)


def stdout() -> Console:
    """Return the console for results. Off a terminal, tables have their full width."""
    return _console(sys.stdout)


def stderr() -> Console:
    """Return the console for progress and errors."""
    return _console(sys.stderr)


def _console(file: Any) -> Console:
    return VisibleConsole(
        file=file,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=not file.isatty(),
        width=None if file.isatty() else 400,
    )


def show_error(fault: ClientError, subject: str = "") -> None:
    """Print an error as one line, after its subject, plus one for each of several faults."""
    first, *more = fault.lines()
    console = stderr()
    console.print(Text.assemble(("cellrun: ", "bold #cf222e"), subject, first), soft_wrap=True)
    for line in more:
        console.print(Text(line), soft_wrap=True)


def agrees(question: str) -> bool:
    """Return whether the user confirms. The prompt is on standard error; the default is no."""
    stderr().print(question, "[y/N] ", end="")
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def is_terminal() -> bool:
    """Return whether the command can prompt on a terminal."""
    return sys.stdin.isatty()
