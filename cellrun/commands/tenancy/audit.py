"""`cellrun audit`: list the audit log (operators)."""

import json
from collections.abc import Iterable
from typing import Annotated

import typer
from rich.table import Table

from cellrun.api.session import connect
from cellrun.display.listing import new_table
from cellrun.display.output import TABLE, OutputOption, show
from cellrun.display.render import instant_text
from cellrun.documents import AuditLine


def audit(
    actor: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only actions of this user or component.")
    ] = None,
    action: Annotated[
        str | None, typer.Option(metavar="ACTION", help="Only this action, such as cancel.job.")
    ] = None,
    subject: Annotated[
        str | None, typer.Option(metavar="SUBJECT", help="Only this subject, such as 'job 17'.")
    ] = None,
    token: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only requests with tokens of this name.")
    ] = None,
    project: Annotated[
        str | None, typer.Option(metavar="DOMAIN/NAME", help="Only lines of this project.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="INSTANT", help="Only lines from 2031-05-04T12:00:00Z on.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="INSTANT", help="Only lines before this instant.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of lines, the newest.")] = 100,
    output: OutputOption = TABLE,
) -> None:
    """List the audit log, newest first (operators)."""
    with connect() as session:
        found = session.audit(
            limit=limit,
            actor=actor,
            action=action,
            subject=subject,
            token=token,
            project=project,
            since=since,
            until=until,
        )
    show(output, found, _table(found) if found else "no lines")


def _table(lines: Iterable[AuditLine]) -> Table:
    table = new_table("AT", "ACTOR", "THROUGH", "FROM", "ACTION", "SUBJECT", "CHANGE")
    for line in lines:
        table.add_row(
            instant_text(line["at"]),
            line["actor"],
            f"token {line['token']}" if line["token"] else line["via"],
            line["address"],
            line["action"],
            line["subject"],
            _change(line),
        )
    return table


def _change(line: AuditLine) -> str:
    before, after = line["before"] or {}, line["after"] or {}
    shown = [
        f"{name}: {_text(before, name)} -> {_text(after, name)}" for name in {**before, **after}
    ]
    return "; ".join(filter(None, (line["text"], *shown)))


def _text(values: dict[str, object], name: str) -> str:
    if name not in values:
        return "-"
    value = values[name]
    return value if isinstance(value, str) else json.dumps(value)
