"""Render addresses, rules and messages of notifications."""

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cellrun.display.listing import new_table
from cellrun.display.render import COLOURS, instant_text
from cellrun.documents import (
    NotificationAddressDocument,
    NotificationMessageDocument,
    NotificationQuietHours,
    NotificationRuleDocument,
)

WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_STATE_COLOURS = {
    "waiting": COLOURS["PENDING"],
    "claimed": COLOURS["RUNNING"],
    "delivered": COLOURS["SUCCEEDED"],
    "abandoned": COLOURS["FAILED"],
}


def address_table(addresses: Iterable[NotificationAddressDocument]) -> Table:
    """Render one line per address, with the scheme of its URL."""
    table = new_table("ADDRESS", "URL", "SERVICE", "UPDATED")
    for address in addresses:
        table.add_row(
            address["name"],
            Text(address["url"]),
            Text(address["service"]),
            instant_text(address["updated_at"]),
        )
    return table


def rule_table(rules: Iterable[NotificationRuleDocument]) -> Table:
    """Render one line per rule."""
    table = new_table("RULE", "ADDRESS", "ENABLED", "REPORTS", "QUIET HOURS")
    for rule in rules:
        table.add_row(
            rule["name"],
            rule["address"],
            "yes" if rule["enabled"] else "no",
            Text(_selection(rule)),
            "" if rule["quiet_hours"] is None else _quiet_text(rule["quiet_hours"]),
        )
    return table


def rule_page(rule: NotificationRuleDocument) -> RenderableType:
    """Render all fields of a rule."""
    quiet = rule["quiet_hours"]
    facts = new_table("FIELD", "VALUE")
    for name, value in (
        ("address", rule["address"]),
        ("enabled", "yes" if rule["enabled"] else "no"),
        ("reports", _selection(rule)),
        ("first message", f"{rule['group_wait_seconds']} s after the first event"),
        ("later messages", f"at least {rule['group_interval_seconds']} s apart"),
        ("quiet hours", "none" if quiet is None else _quiet_text(quiet)),
    ):
        facts.add_row(name, Text(value))
    if quiet is not None:
        facts.add_row("critical alerts", "sent" if rule["critical_passes"] else "not sent")
    return Group(Text.assemble("rule ", (rule["name"], "bold")), Text(), facts)


def message_table(messages: Iterable[NotificationMessageDocument]) -> Table:
    """Render one line per message, with its tries and its last error."""
    table = new_table("ID", "CREATED", "STATE", "TRIES", "RULE", "TITLE", "ENDED OR NEXT", "ERROR")
    for message in messages:
        source = "test" if message["is_test"] else message["rule"] or "(deleted)"
        table.add_row(
            str(message["id"]),
            instant_text(message["created_at"]),
            message_state(message),
            str(message["tries"]),
            source,
            Text(message["title"]),
            instant_text(message["ended_at"] or message["due_at"]),
            Text(message["last_error"]),
        )
    return table


def message_state(message: NotificationMessageDocument) -> Text:
    """Return the state of a message in its colour."""
    return Text(message["state"], style=_STATE_COLOURS.get(message["state"], ""))


def _selection(rule: NotificationRuleDocument) -> str:
    """Return the events of a rule: `jobs of default/lab, failed, named nightly-*`."""
    parts = []
    if rule["about"] == "alerts":
        parts += ["critical alerts" if rule["only_critical"] else "alerts", *rule["kinds"]]
        return ": ".join([parts[0], ", ".join(parts[1:])]) if rule["kinds"] else parts[0]
    parts.append("jobs" + (f" of {' or '.join(rule['projects'])}" if rule["projects"] else ""))
    if rule["states"]:
        parts.append(" or ".join(state.lower() for state in rule["states"]))
    if rule["name_pattern"]:
        parts.append(f"named {rule['name_pattern']}")
    if rule["label"]:
        parts.append(f"with the label notify={rule['label']}")
    return ", ".join(parts)


def _quiet_text(quiet: NotificationQuietHours) -> str:
    days = " ".join(WEEKDAYS[day] for day in quiet["weekdays"])
    return f"{quiet['begin']}-{quiet['end']} {quiet['time_zone']}" + (f" on {days}" if days else "")
