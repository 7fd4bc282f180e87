"""`cellrun alerts`: list alerts, show what one means and what to do, or close one."""

import re
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from cellrun.api.session import connect
from cellrun.display.listing import Listing, new_table
from cellrun.display.live import WatchOption, show_or_watch
from cellrun.display.output import TABLE, OutputOption, show
from cellrun.display.render import instant_text
from cellrun.documents import Alert
from cellrun.errors import BadInput

_LINK = re.compile(r"\[([^]]+)\]\(([^)#]*)(?:#[^)]*)?\)")


def alerts(
    number: Annotated[
        int | None, typer.Argument(metavar="[ID]", min=1, help="Id of one alert.")
    ] = None,
    is_all: Annotated[bool, typer.Option("-a", "--all", help="Also closed alerts.")] = False,
    kind: Annotated[
        str | None, typer.Option(help="Only alerts of this kind, such as cell_lost.")
    ] = None,
    is_closing: Annotated[
        bool, typer.Option("--close", help="Close the alert; a lasting cause raises it again.")
    ] = False,
    reason: Annotated[str, typer.Option(help="With --close: the reason, for the audit log.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of lines, the newest.")] = 100,
    is_watching: WatchOption = False,
    output: OutputOption = TABLE,
) -> None:
    """List open alerts, or show or close one (auditors; operators close)."""
    if is_closing and number is None:
        raise BadInput("--close: needs the id of an alert")
    with connect(is_operator=True) as session:
        if is_closing and number is not None:
            closed = session.close_alert(number, reason=reason)
            show(output, closed, f"alert {number} is closed")
            return

        def load() -> tuple[Any, RenderableType]:
            if number is not None:
                alert = session.alert(number)
                return alert, _page(alert)
            state = "all" if is_all else None
            found = session.alerts(limit=limit, state=state, kind=kind)
            nothing = "no alerts" if is_all else "no open alerts"
            return found, _table(found) if found else nothing

        show_or_watch(output, load, is_watching=is_watching)


def _table(alerts: Iterable[Alert]) -> Listing:
    table = new_table(
        *("ALERT", "SEVERITY", "KIND", "SUBJECT", "SINCE", "CLOSED", "TEXT"), wide=("LAST RAISED",)
    )
    for alert in alerts:
        table.add_row(
            str(alert["id"]),
            _severity(alert),
            alert["kind"],
            alert["subject"],
            instant_text(alert["raised_at"]),
            instant_text(alert["cleared_at"]),
            Text(alert["text"]),
            instant_text(alert["last_raised_at"]),
        )
    return table


def _page(alert: Alert) -> RenderableType:
    head = Text.assemble(
        (f"alert {alert['id']} {alert['kind']}  ", "bold"),
        "closed" if alert["cleared_at"] else "open",
    )
    facts = new_table("FIELD", "VALUE")
    facts.show_header = False
    for name, value in (
        ("severity", _severity(alert)),
        ("subject", alert["subject"]),
        ("text", alert["text"]),
        ("raised", instant_text(alert["raised_at"])),
        ("last raised", instant_text(alert["last_raised_at"])),
        ("closed", instant_text(alert["cleared_at"])),
        ("meaning", _plain(alert["meaning"])),
        ("do", _plain(alert["remedy"])),
    ):
        if value:
            facts.add_row(f"{name}:", value if isinstance(value, Text) else Text(value))
    return Group(head, facts)


def _severity(alert: Alert) -> Text:
    severity = alert["severity"]
    return Text(severity, style="bold #cf222e" if severity == "critical" else "")


def _plain(markdown: str) -> str:
    """Return a text of the documentation without the marks of links and code."""
    return _LINK.sub(lambda found: f"{found[1]} (docs/{found[2]})", markdown).replace("`", "")
