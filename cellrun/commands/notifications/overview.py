"""`cellrun notifications`: list addresses and rules, and the messages to an address."""

from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from cellrun.api.session import connect
from cellrun.commands.notifications import addresses, rules
from cellrun.commands.notifications.addresses import AddressName
from cellrun.display.notifications import address_table, message_table, rule_table
from cellrun.display.output import TABLE, OutputOption, show

app = typer.Typer(
    help="Report alerts and ends of jobs to people, by mail or chat (operators).",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(addresses.app, name="address")
app.add_typer(rules.app, name="rule")


@app.command("list")
def list_notifications(output: OutputOption = TABLE) -> None:
    """List the addresses, without their URLs, and the rules (operators)."""
    with connect() as session:
        found = {"addresses": session.notification_addresses()}
        known = session.notification_rules()
    first = address_table(found["addresses"]) if found["addresses"] else Text("no addresses")
    second = rule_table(known) if known else Text("no rules")
    show(output, {**found, "rules": known}, Group(first, Text(), second))


@app.command("messages")
def list_messages(
    address: AddressName,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of lines.")] = 20,
    output: OutputOption = TABLE,
) -> None:
    """List the messages to an address, newest first, with tries and errors (operators)."""
    with connect() as session:
        found = list(session.notification_messages(address, limit=limit))
    show(output, found, message_table(found) if found else f"no messages to address {address}")
