"""`cellrun notifications address`: URLs come from a file, a pipe or a prompt, and never back."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from cellrun.api.polling import PollInterval, beats
from cellrun.api.session import Session, connect
from cellrun.display.notifications import address_table
from cellrun.display.output import TABLE, OutputOption, show, show_document
from cellrun.display.terminal import agrees, is_terminal, stderr, stdout
from cellrun.documents import NotificationMessageDocument
from cellrun.errors import EXIT_FAILED, BadInput

# A try is killed after 45 s; before it, the message may wait for its turn.
TEST_SECONDS = 120.0

AddressName = Annotated[str, typer.Argument(metavar="ADDRESS", help="Name of an address.")]

app = typer.Typer(
    help="Write, test and delete addresses of notifications. Their URLs cannot be read back.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command("show")
def show_address(name: AddressName, output: OutputOption = TABLE) -> None:
    """Show an address with the scheme of its URL (operators)."""
    with connect() as session:
        found = session.notification_address(name)
    show(output, found, address_table([found]))


@app.command("set")
def set_address(
    name: AddressName,
    from_file: Annotated[
        Path | None, typer.Option("--from-file", metavar="FILE", help="Read the URL from FILE.")
    ] = None,
    output: OutputOption = TABLE,
) -> None:
    """Create or replace an address with the URL from FILE, standard input or a prompt (operators).

    The URL is one of Apprise, such as mailtos://user:password@example.org. The command line would
    show it to other users of this machine.
    """
    url = _read_url(from_file)
    if not url:
        raise BadInput("the URL is empty")
    with connect() as session:
        found = session.put_notification_address(name, url)
    text = f"address {name} sends to {found['url']} ({found['service']})"
    show(output, found, f"{text}; test it with `cellrun notifications address test {name}`")


@app.command("delete")
def delete_address(
    name: AddressName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    output: OutputOption = TABLE,
) -> None:
    """Delete an address with its rules and messages (operators)."""
    with connect() as session:
        found = session.notification_address(name)
        rules = [rule["name"] for rule in session.notification_rules() if rule["address"] == name]
        lost = f" with the rules {', '.join(rules)}" if rules else ""
        if not yes and not agrees(f"Delete the address {name}{lost} and its messages?"):
            raise typer.Exit(EXIT_FAILED)
        session.delete_notification_address(name)
    show(output, found, f"address {name} is deleted{lost}")


@app.command("test")
def send_test(
    name: AddressName,
    deadline: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Stop waiting after this time.")
    ] = TEST_SECONDS,
    output: OutputOption = TABLE,
) -> None:
    """Send a test message, once, and wait for its result (operators). Exit with 0 if delivered."""
    with connect() as session:
        sent = session.test_notification_address(name)
        stderr().print(f"message {sent['id']} to address {name} waits for its turn")
        found = _wait_for(session, name, sent, deadline)
    if output.is_document:
        show_document(output, found)
    elif found["state"] == "delivered":
        stdout().print(f"message {found['id']} is delivered to address {name}")
    else:
        stdout().print(f"message {found['id']} is {found['state']}: {found['last_error']}")
    if found["state"] != "delivered":
        raise typer.Exit(EXIT_FAILED)


def _wait_for(
    session: Session, name: str, sent: NotificationMessageDocument, deadline: float
) -> NotificationMessageDocument:
    """Poll the messages of an address until `sent` has ended. Raise StillOpen."""
    pace = PollInterval(deadline)
    for _ in beats(pace, f"message {sent['id']}"):
        newest = session.patiently(lambda: list(session.notification_messages(name)), pace)
        found = next((message for message in newest if message["id"] == sent["id"]), sent)
        if found["ended_at"] is not None:
            return found
    raise AssertionError("beats never end")


def _read_url(file: Path | None) -> str:
    if file is None:
        if is_terminal():
            return str(typer.prompt("URL", hide_input=True, err=True)).strip()
        return sys.stdin.read().strip()
    try:
        return file.read_text().strip()
    except OSError as error:
        raise BadInput(f"{file}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise BadInput(f"{file}: is not a text in UTF-8") from None
