"""Run the `cellrun` command and print each error as one line without a traceback."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Annotated, Any

import typer
from typer.completion import completion_init
from typer.core import TyperGroup

from cellrun.commands import completion
from cellrun.commands.cells import alerts, cells, policies, top
from cellrun.commands.jobs import (
    artifacts,
    bulk,
    cache,
    change,
    describe,
    enter,
    events,
    history,
    logs,
    queue,
    schedules,
    show,
    submit,
    watch,
)
from cellrun.commands.notifications import overview
from cellrun.commands.tenancy import audit, login, projects, secrets, tokens
from cellrun.display.terminal import show_error, stderr
from cellrun.errors import EXIT_INTERRUPTED, EXIT_TROUBLE, ClientError
from cellrun.settings import PROFILE, check_profile


class _Commands(TyperGroup):
    """Print the errors of the client as one line and set the exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ClientError as fault:
            show_error(fault)
            raise typer.Exit(EXIT_TROUBLE) from None
        except BrokenPipeError:
            raise  # the reader closed the pipe: click exits without an error
        except OSError as fault:
            # Standard output cannot be written, for example since the disk is full.
            show_error(ClientError(fault.strerror or str(fault)))
            raise typer.Exit(EXIT_TROUBLE) from None
        except KeyboardInterrupt:
            stderr().print("interrupted")
            raise typer.Exit(EXIT_INTERRUPTED) from None


app = typer.Typer(
    cls=_Commands,
    name="cellrun",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"cellrun {version('cellrun')}")
        raise typer.Exit


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Set a variable of the environment for one command."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


@app.callback()
def cellrun(
    context: typer.Context,
    profile: Annotated[
        str,
        typer.Option(
            "--profile",
            metavar="NAME",
            help="Use a server and token that `cellrun --profile NAME login` stored"
            f" ({PROFILE}); they apply instead of CELLRUN_URL and CELLRUN_TOKEN.",
        ),
    ] = "",
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Run container tasks on many machines.

    CELLRUN_URL and CELLRUN_TOKEN, or `cellrun login`, set the server and your token.
    """
    if profile:
        context.with_resource(_environment(PROFILE, check_profile(profile)))


# Registers the shells for the scripts of `cellrun completion`.
completion_init()

for command in (
    login.login,
    login.profiles,
    submit.submit,
    submit.run,
    submit.validate,
    show.jobs,
    show.ps,
    show.job,
    show.status,
    top.top,
    watch.wait,
    logs.logs,
    artifacts.artifacts,
    artifacts.cp,
    describe.describe,
    show.explain,
    history.history,
    events.events,
    queue.queue,
    queue.hold,
    queue.release,
    queue.move,
    change.cancel,
    change.retry,
    change.delete,
    alerts.alerts,
    cells.cells,
    cells.cordon,
    cells.uncordon,
    cells.drain,
    cells.unquarantine,
    policies.pools,
    policies.confirm_loss,
    policies.quota,
    policies.usage,
    change.release_attempt,
    tokens.whoami,
    audit.audit,
    completion.completion,
):
    app.command()(command)
app.command(
    "exec",
    # Options behind the task belong to the program.
    context_settings={"allow_interspersed_args": False},
)(enter.enter)
app.add_typer(bulk.app, name="bulk")
app.add_typer(cache.app, name="cache")
app.add_typer(overview.app, name="notifications")
app.add_typer(schedules.app, name="schedule")
app.add_typer(secrets.app, name="secrets")
app.add_typer(projects.projects, name="project")
app.add_typer(projects.members, name="member")
app.add_typer(projects.service_accounts, name="service-account")
app.add_typer(tokens.tokens, name="token")
app.add_typer(tokens.users, name="user")
