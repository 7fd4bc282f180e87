"""`cellrun pools`, `quota`, `usage`: show limits, and what was requested and used.

Operators change limits with `--set` and `--delete`.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Annotated, Any

import typer

from cellrun.api.session import Session, connect
from cellrun.display.output import TABLE, OutputOption, show
from cellrun.display.policies import (
    pool_page,
    pool_table,
    quota_page,
    quota_table,
    usage_table,
)
from cellrun.display.terminal import agrees
from cellrun.errors import EXIT_FAILED, ApiError, BadInput
from cellrun.spec_file import apply_change

# Name in a request -> name in a response.
_SHOWN_AS = {"memory": "memory_mib", "disk": "disk_mib"}


def pools(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Name of a pool.")] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="Change or create the pool (operators); tokens.licence=4 sets a token.",
        ),
    ] = None,
    output: OutputOption = TABLE,
) -> None:
    """List the pools, or show or change the policy of one."""
    with connect(is_operator=bool(changes)) as session:
        if name is None:
            if changes:
                raise BadInput("--set: the NAME of the pool is missing")
            found = session.pools()
            show(output, found, pool_table(found) if found else "no pools")
            return
        pool = _change_pool(session, name, changes) if changes else session.pool(name)
    show(output, pool, pool_page(pool))


def confirm_loss(
    pool: Annotated[str, typer.Argument(metavar="POOL", help="Name of a pool.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    output: OutputOption = TABLE,
) -> None:
    """Confirm that the silent cells of a pool are lost after a mass loss (operators).

    Their tasks start again on other cells. If only the network failed, these tasks may run twice.
    """
    question = f"Declare the silent cells of pool {pool} lost, and start their tasks again?"
    with connect(is_operator=True) as session:
        session.pool(pool)
        if not yes and not agrees(question):
            raise typer.Exit(EXIT_FAILED)
        found = session.confirm_loss(pool)
    show(output, found, f"the loss of the silent cells of pool {pool} is confirmed")


def quota(
    kind: Annotated[
        str | None,
        typer.Argument(metavar="[KIND", help="user, project, domain or default."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME]",
            help="Name of the user or domain; of a project, domain/name; of a default quota: user,"
            " project or domain.",
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="LIMIT=VALUE",
            help="Set a limit (operators): cpu=4, memory=64Gi, running_tasks=10,"
            " stored_bytes=50Gi, weight=2, highest_band=production; null removes it.",
        ),
    ] = None,
    is_deletion: Annotated[
        bool,
        typer.Option(
            "--delete",
            help="Delete the quota (operators): the default quota of its kind applies again.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    output: OutputOption = TABLE,
) -> None:
    """List the quotas, or show, change or delete the limits of a user, project or domain."""
    if is_deletion and changes:
        raise BadInput("--delete: not together with --set")
    with connect(is_operator=bool(changes) or is_deletion) as session:
        if name is None:
            if changes or is_deletion:
                option = "--set" if changes else "--delete"
                raise BadInput(f"{option}: KIND and NAME of the quota are missing")
            listed = session.quotas(kind=kind)
            show(output, listed, quota_table(listed) if listed else "no quotas")
            return
        assert kind is not None
        if is_deletion:
            if not yes and not agrees(f"Delete the quota of {kind} {name}?"):
                raise typer.Exit(EXIT_FAILED)
            session.delete_quota(kind, name)
        found = session.quota(kind, name)
        if changes:
            wanted = _limits(found, changes)
            found = session.put_quota(kind, name, wanted) if wanted else found
    show(output, found, quota_page(found))


def usage(
    month: Annotated[
        str | None, typer.Option(metavar="YYYY-MM", help="Month in UTC; default the present one.")
    ] = None,
    by: Annotated[
        str, typer.Option(metavar="KEYS", help="Some of month,project,user,job.")
    ] = "project",
    project: Annotated[
        str | None, typer.Option(metavar="DOMAIN/NAME", help="Only this project.")
    ] = None,
    user: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only jobs of this user.")
    ] = None,
    job: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only job names that begin with NAME.")
    ] = None,
    rank: Annotated[
        str, typer.Option(metavar="RESOURCE", help="Sort by the waste of cpu, memory or gpu.")
    ] = "cpu",
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of rows.")] = 50,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print CSV with at most 20,000 rows.")
    ] = False,
    output: OutputOption = TABLE,
) -> None:
    """Show requested and used resources of ended jobs, the largest waste first."""
    if as_csv and output.is_document:
        raise BadInput("--csv: not together with --output")
    wanted = {"month": month, "by": by, "project": project, "user": user, "job": job, "rank": rank}
    with connect() as session:
        if as_csv:
            # As the server sent it: the line ends of CSV are its own on every system.
            typer.echo(session.usage_csv(**wanted).encode(), nl=False)
            return
        found = session.usage(limit=limit, **wanted)
    show(output, found, usage_table(found) if found else "no usage in this month")


def _change_pool(session: Session, name: str, changes: Iterable[str]) -> Any:
    try:
        present: Mapping[str, Any] = session.pool(name)
    except ApiError as fault:
        if fault.status != 404:
            raise
        present = {}
    wanted = _changed(present, changes)
    return session.put_pool(name, wanted) if wanted else present


def _limits(present: Mapping[str, Any], changes: Iterable[str]) -> dict[str, Any]:
    """Return the changed fields of a quota. A name that is no field is a resource."""
    named = []
    for change in changes:
        head = change.partition("=")[0].partition(".")[0]
        named.append(change if head in present else f"resources.{change}")
    wanted = _changed(present, named)
    resources = wanted.get("resources")
    if isinstance(resources, dict):
        for written, shown in _SHOWN_AS.items():
            if written in resources:
                resources.pop(shown, None)
    return wanted


def _changed(present: Mapping[str, Any], changes: Iterable[str]) -> dict[str, Any]:
    """Return the fields whose values `changes` alter."""
    wanted: dict[str, Any] = deepcopy(dict(present))
    for change in changes:
        apply_change(wanted, change)
    return {name: value for name, value in wanted.items() if (name, value) not in present.items()}
