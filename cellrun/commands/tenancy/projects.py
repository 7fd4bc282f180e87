"""`cellrun project`, `member` and `service-account`: projects, and what users may do on them."""

from typing import Annotated, Literal

import typer

from cellrun.api.session import connect
from cellrun.display.listing import new_table
from cellrun.display.output import TABLE, Output, OutputOption, show
from cellrun.display.render import hold_text, instant_text, stored_text
from cellrun.display.terminal import agrees
from cellrun.documents import Project as ProjectDocument
from cellrun.errors import EXIT_FAILED, BadInput

projects = typer.Typer(
    help="List, create and archive projects.", no_args_is_help=True, rich_markup_mode=None
)
members = typer.Typer(
    help="List, add and remove members of a project or domain, and auditors.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
service_accounts = typer.Typer(
    help="Create, list and delete users for machines (managers of their project).",
    no_args_is_help=True,
    rich_markup_mode=None,
)

ProjectName = Annotated[
    str, typer.Argument(metavar="PROJECT", help="The project, as name or domain/name.")
]
Project = Annotated[
    str | None, typer.Option(metavar="PROJECT", help="The project, as name or domain/name.")
]
Domain = Annotated[str | None, typer.Option(metavar="DOMAIN", help="The domain: all its projects.")]
Auditors = Annotated[
    bool,
    typer.Option("--auditors", help="The auditors of the installation: they read everything."),
]
User = Annotated[str | None, typer.Option(metavar="USER", help="Name of the user.")]
Group = Annotated[str | None, typer.Option(metavar="GROUP", help="Name of the group.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
AccountName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the service account.")]
AccountProject = Annotated[
    str, typer.Option(metavar="PROJECT", help="Its project, as name or domain/name.")
]


@projects.command("list")
def list_projects(output: OutputOption = TABLE) -> None:
    """List the projects that you may read, with your role and what the store has for each."""
    with connect() as session:
        found = session.projects()
    table = new_table("PROJECT", "ROLE", "STORED", "ARCHIVED")
    for project in found:
        archived = instant_text(project["archived_at"]) if project["archived_at"] else "no"
        table.add_row(project["name"], project["role"], _stored(project), archived)
    show(output, found, table if found else "no projects")


@projects.command("show")
def show_project(name: ProjectName, output: OutputOption = TABLE) -> None:
    """Show your role on a project, whether it is archived, and what the store has for it."""
    with connect() as session:
        found = session.project(name)
    state = "archived" if found["archived"] else "active"
    parts = [f"project {found['name']} is {state}", f"your role is {found['role']}"]
    if stored := _stored(found):
        parts.append(f"stored: {stored}")
    if found["hold"]:
        parts.append(hold_text(found["hold"]))
    show(output, found, " · ".join(parts))


def _stored(found: ProjectDocument) -> str:
    return stored_text(found["stored_bytes"], found["stored_bytes_limit"])


@projects.command("create")
def create_project(name: ProjectName, output: OutputOption = TABLE) -> None:
    """Create a project (managers of its domain; operators also create the domain)."""
    with connect() as session:
        found = session.put_project(name)
    note = ", and is archived" if found["archived"] else ""
    show(output, found, f"project {found['name']} exists{note}")


@projects.command("archive")
def archive_project(name: ProjectName, output: OutputOption = TABLE) -> None:
    """Refuse new jobs and secrets in a project. Its jobs continue and can be read."""
    _set_archived(name, archived=True, output=output)


@projects.command("unarchive")
def unarchive_project(name: ProjectName, output: OutputOption = TABLE) -> None:
    """Accept jobs and secrets in an archived project again."""
    _set_archived(name, archived=False, output=output)


def _set_archived(name: str, *, archived: bool, output: Output) -> None:
    with connect() as session:
        session.project(name)  # so that a misspelt name creates no project
        found = session.put_project(name, archived=archived)
    show(output, found, f"project {found['name']} is {'archived' if archived else 'active'}")


@members.command("list")
def list_members(
    project: Project = None,
    domain: Domain = None,
    auditors: Auditors = False,
    output: OutputOption = TABLE,
) -> None:
    """List the users and groups with a role on a project or domain (managers), or the auditors."""
    _check_scope(project, domain, auditors=auditors)
    with connect() as session:
        found = session.members(project=project, domain=domain)
    table = new_table("KIND", "NAME", "ROLE", "SINCE")
    for member in found:
        since = instant_text(member["created_at"])
        table.add_row(member["kind"], member["name"], member["role"], since)
    show(output, found, table if found else "no members")


@members.command("add")
def add_member(
    project: Project = None,
    domain: Domain = None,
    auditors: Auditors = False,
    user: User = None,
    group: Group = None,
    role: Annotated[
        str | None, typer.Option(help="viewer, submitter or manager; not of auditors.")
    ] = None,
    output: OutputOption = TABLE,
) -> None:
    """Give a user or group a role on a project or domain, in place of a present one."""
    where = _check_scope(project, domain, auditors=auditors)
    kind, name = _member_of(user, group)
    if (role is None) is not auditors:
        raise BadInput("--role is required with --project and --domain, and not with --auditors")
    with connect() as session:
        found = session.put_member(kind, name, role=role, project=project, domain=domain)
    show(output, found, f"{kind} {name} has the role {found['role']} on {where}")


@members.command("remove")
def remove_member(
    project: Project = None,
    domain: Domain = None,
    auditors: Auditors = False,
    user: User = None,
    group: Group = None,
) -> None:
    """Remove the role of a user or group on a project or domain."""
    where = _check_scope(project, domain, auditors=auditors)
    kind, name = _member_of(user, group)
    with connect() as session:
        session.remove_member(kind, name, project=project, domain=domain)
    print(f"{kind} {name} has no role on {where}")


@service_accounts.command("list")
def list_service_accounts(project: AccountProject, output: OutputOption = TABLE) -> None:
    """List the service accounts of a project."""
    with connect() as session:
        found = session.service_accounts(project)
    table = new_table("SERVICE ACCOUNT", "ROLE", "SINCE")
    for account in found:
        table.add_row(account["name"], account["role"] or "", instant_text(account["created_at"]))
    show(output, found, table if found else "no service accounts")


@service_accounts.command("create")
def create_service_account(
    name: AccountName,
    project: AccountProject,
    role: Annotated[str, typer.Option(help="viewer, submitter or manager.")] = "submitter",
    output: OutputOption = TABLE,
) -> None:
    """Create a service account, or change its role. `cellrun token create --user` gives access."""
    with connect() as session:
        found = session.put_service_account(name, project=project, role=role)
    show(output, found, f"service account {name} has the role {found['role']} on {project}")


@service_accounts.command("delete")
def delete_service_account(name: AccountName, project: AccountProject, yes: Yes = False) -> None:
    """Deactivate a service account and revoke its tokens. Its jobs remain."""
    with connect() as session:
        if not yes and not agrees(f"Delete the service account {name} and its tokens?"):
            raise typer.Exit(EXIT_FAILED)
        session.delete_service_account(name, project=project)
    print(f"service account {name} is deleted")


def _check_scope(project: str | None, domain: str | None, *, auditors: bool) -> str:
    """Return a text for the project, the domain or the installation. Raise BadInput."""
    if [project is not None, domain is not None, auditors].count(True) != 1:
        raise BadInput("exactly one of --project, --domain and --auditors is required")
    if project is not None:
        return f"project {project}"
    return "the installation" if domain is None else f"domain {domain}"


def _member_of(user: str | None, group: str | None) -> tuple[Literal["user", "group"], str]:
    """Return the kind and the name of the member. Raise BadInput."""
    if user is not None and group is None:
        return "user", user
    if group is not None and user is None:
        return "group", group
    raise BadInput("exactly one of --user and --group is required")
