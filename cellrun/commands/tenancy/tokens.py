"""`cellrun token create|list|revoke`, `cellrun user create|list|deactivate`, `cellrun whoami`."""

from collections.abc import Iterable
from typing import Annotated

import typer
from rich.table import Table

from cellrun.api.session import connect
from cellrun.display.listing import new_table
from cellrun.display.output import TABLE, Output, OutputOption, show
from cellrun.display.render import instant_text
from cellrun.display.terminal import agrees
from cellrun.documents import Token, User
from cellrun.errors import EXIT_FAILED

tokens = typer.Typer(
    help="Create, list and revoke API tokens.", no_args_is_help=True, rich_markup_mode=None
)
users = typer.Typer(
    help="Create, list and deactivate users (operators).",
    no_args_is_help=True,
    rich_markup_mode=None,
)
UserName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")]


def whoami(output: OutputOption = TABLE) -> None:
    """Show the server, and the user, roles and token of these commands."""
    with connect() as session:
        found = session.whoami()
        url = session.url
    token = found["token"]
    expires = instant_text(token["expires_at"]) if token["expires_at"] else "never"
    facts = f"role {found['role']} · token {token['name']} · expires {expires}"
    lines = [f"{found['user']} at {url}", facts]
    if found["installation"]:
        lines.append(f"{found['installation']} of the installation")
    for held in found["roles"]:
        where = f"project {held['domain']}/{held['project']}"
        lines.append(
            f"{held['role']} of {where if held['project'] else 'domain ' + held['domain']}"
        )
    if token["projects"] is not None:
        lines.append(f"token limited to {_limit_text(token)}")
    show(output, found, "\n".join(lines))


@tokens.command("create")
def create_token(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the token.")],
    role: Annotated[
        str, typer.Option(help="viewer, submitter, manager or operator.")
    ] = "submitter",
    user: Annotated[
        str | None,
        typer.Option(
            metavar="USER",
            help="Owner of the token; default: you. Managers can name a service account of their"
            " project, operators any user.",
        ),
    ] = None,
    project: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PROJECT",
            help="Limit the token to this project, as name or domain/name; repeatable.",
        ),
    ] = None,
    days: Annotated[
        int, typer.Option("--days", min=1, metavar="N", help="Days until it expires.")
    ] = 90,
    output: OutputOption = TABLE,
) -> None:
    """Create a token and print it. It cannot be read again."""
    with connect() as session:
        made = session.create_token(
            name, role=role, user=user, projects=project, expires_in_days=days
        )
    show(output, made, made["token"])


@tokens.command("list")
def list_tokens(
    user: Annotated[
        str | None, typer.Option(metavar="USER", help="Only tokens of this user.")
    ] = None,
    project: Annotated[
        str | None,
        typer.Option(
            metavar="PROJECT",
            help="Tokens of all users that are limited to this project (its managers).",
        ),
    ] = None,
    output: OutputOption = TABLE,
) -> None:
    """List your tokens, or as an operator those of all users."""
    with connect() as session:
        found = session.tokens(user=user, project=project)
    show(output, found, _token_table(found) if found else "no tokens")


@tokens.command("revoke")
def revoke_token(
    token_id: Annotated[int, typer.Argument(metavar="ID", help="Id in `cellrun token list`.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Revoke a token. The next request with it is refused."""
    with connect() as session:
        if not yes and not agrees(f"Revoke the token {token_id}?"):
            raise typer.Exit(EXIT_FAILED)
        session.revoke_token(token_id)
    print(f"token {token_id} is revoked")


@users.command("list")
def list_users(output: OutputOption = TABLE) -> None:
    """List the users."""
    with connect() as session:
        found = session.users()
    table = new_table("USER", "ROLE", "ACTIVE", "LAST LOGIN")
    for user in found:
        table.add_row(
            user["name"],
            user["role"],
            "yes" if user["active"] else "no",
            instant_text(user["last_login"]) if user["last_login"] else "",
        )
    show(output, found, table)


@users.command("create")
def create_user(name: UserName, output: OutputOption = TABLE) -> None:
    """Create a user, or activate an inactive one. `cellrun token create --user` gives access."""
    _put_user(name, active=True, output=output)


@users.command("deactivate")
def deactivate_user(name: UserName, output: OutputOption = TABLE) -> None:
    """Refuse the tokens and logins of a user from now on."""
    _put_user(name, active=False, output=output)


def _put_user(name: str, *, active: bool, output: Output) -> None:
    with connect() as session:
        user: User = session.put_user(name, active=active)
    show(output, user, f"user {name} is {'active' if active else 'inactive'}")


def _token_table(found: Iterable[Token]) -> Table:
    table = new_table(
        "ID", "TOKEN", "USER", "ROLE", "PROJECTS", "BEGINS WITH", "EXPIRES", "LAST USED"
    )
    for token in found:
        table.add_row(
            str(token["id"]),
            token["name"],
            token["user"],
            token["role"],
            _limit_text(token),
            token["prefix"],
            instant_text(token["expires_at"]) if token["expires_at"] else "never",
            instant_text(token["last_used_at"]) if token["last_used_at"] else "never",
        )
    return table


def _limit_text(token: Token) -> str:
    """Return the projects that a token is limited to; others than the caller's are counted."""
    if token["projects"] is None:
        return "all"
    hidden = token["hidden_projects"]
    noun = "project" if hidden == 1 else "projects"
    return ", ".join([*token["projects"], *([f"{hidden} other {noun}"] if hidden else [])])
