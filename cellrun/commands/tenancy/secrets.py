"""`cellrun secrets list`, `set`, `delete`: values come from a file, a pipe or a prompt.

Command-line arguments are visible in the process list and stored in the shell's history.
"""

import base64
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cellrun.api.session import connect
from cellrun.display.listing import new_table
from cellrun.display.output import TABLE, OutputOption, show
from cellrun.display.render import instant_text
from cellrun.display.terminal import agrees, is_terminal
from cellrun.errors import EXIT_FAILED, BadInput

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the secret.")]
Project = Annotated[
    str | None,
    typer.Option(
        metavar="PROJECT",
        help="Project of the secret, as name or domain/name. Default: default/default, or your only"
        " project.",
    ),
]

app = typer.Typer(
    help="Write, list and delete the secrets of a project. Values cannot be read back.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("list")
def list_secrets(project: Project = None, output: OutputOption = TABLE) -> None:
    """List the secrets of a project, without their values."""
    with connect() as session:
        found = session.secrets(project=project)
    table = new_table("SECRET", "BYTES", "VERSION", "WRITTEN BY", "WRITTEN AT", "REGISTRY")
    for secret in found:
        table.add_row(
            secret["name"],
            str(secret["size"]),
            str(secret["version"]),
            secret["written_by"] or "",
            instant_text(secret["updated_at"]),
            secret.get("registry_server", ""),
        )
    show(output, found, table if found else "no secrets")


@app.command("set")
def set_secret(
    name: Name,
    from_file: Annotated[
        Path | None,
        typer.Option("--from-file", metavar="FILE", help="Read the value from FILE, unchanged."),
    ] = None,
    registry: Annotated[
        str | None,
        typer.Option(
            "--registry",
            metavar="USER",
            help="Write a login of USER to an image registry; the value is the password.",
        ),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(
            "--server",
            metavar="HOST[:PORT]",
            help="With --registry: the registry, as in the names of its images. Default: Docker"
            " Hub (docker.io). No other registry gets the login.",
        ),
    ] = None,
    project: Project = None,
    output: OutputOption = TABLE,
) -> None:
    """Create or replace a secret with the value from FILE, standard input or a prompt."""
    if registry is not None and from_file is not None:
        raise BadInput(
            "--registry and --from-file exclude each other: enter the password at the prompt or on"
            " standard input"
        )
    if server is not None and registry is None:
        raise BadInput("--server is only valid with --registry")
    if registry is not None:
        password = _prompt("Password") if is_terminal() else sys.stdin.readline().rstrip("\r\n")
        login = {"username": registry, "password": password}
        body: dict[str, Any] = {
            "registry": login if server is None else {"server": server, **login}
        }
    else:
        body = {"value_base64": base64.b64encode(_read_value(from_file)).decode()}
    with connect() as session:
        secret = session.put_secret(name, body, project=project)
    show(output, secret, f"secret {name} is written (version {secret['version']})")


@app.command("delete")
def delete_secret(
    name: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    project: Project = None,
    output: OutputOption = TABLE,
) -> None:
    """Delete a secret. Its value cannot be recovered; tasks that name it and start later fail."""
    with connect() as session:
        secret = session.secret(name, project=project)
        found = f"{secret['domain']}/{secret['project']}"
        if not yes and not agrees(f"Delete the secret {name} of project {found}?"):
            raise typer.Exit(EXIT_FAILED)
        session.delete_secret(name, project=found)
    show(output, secret, f"secret {name} is deleted")


def _read_value(file: Path | None) -> bytes:
    if file is None:
        if is_terminal():
            return _prompt("Value").encode()
        return sys.stdin.buffer.read()
    try:
        return file.read_bytes()
    except OSError as error:
        raise BadInput(f"{file}: {error.strerror or error}") from None


def _prompt(what: str) -> str:
    return str(typer.prompt(what, hide_input=True, confirmation_prompt=True, err=True))
