"""`cellrun login`: store the server's URL and the token for later commands."""

import os
import sys
from typing import Annotated

import typer

from cellrun.api.session import Session
from cellrun.display.listing import new_table
from cellrun.display.output import TABLE, OutputOption, show
from cellrun.errors import BadInput
from cellrun.settings import PROFILE, ClientSettings, check_url, load_profiles, store_settings


def login(
    url: Annotated[str, typer.Argument(help="The server, for example http://127.0.0.1:8000.")],
    token: Annotated[
        str | None,
        typer.Option(
            help="Your token. Others can see it in the process list: omit it for a prompt."
        ),
    ] = None,
    output: OutputOption = TABLE,
) -> None:
    """Store a server's URL and your token after a test request."""
    token = token or os.environ.get("CELLRUN_TOKEN") or _prompt_token()
    settings = ClientSettings(check_url(url), token)
    with Session(settings) as session:
        list(session.jobs(limit=1))
    profile = os.environ.get(PROFILE, "")
    path = store_settings(settings, profile=profile)
    answer = {"url": settings.url, "stored_in": str(path), "profile": profile}
    where = f"profile {profile} in {path}" if profile else path
    show(output, answer, f"logged in to {settings.url} (stored in {where})")


def profiles(output: OutputOption = TABLE) -> None:
    """List the servers of which `cellrun login` stored a token."""
    current = os.environ.get(PROFILE, "")
    found = [
        {"name": name, "url": url, "current": name == current}
        for name, url in sorted(load_profiles().items())
    ]
    table = new_table("NAME", "URL", "CURRENT")
    for each in found:
        name, url = str(each["name"]), str(each["url"])
        table.add_row(name or "(none)", url, "yes" if each["current"] else "")
    show(output, found, table if found else "no profiles")


def _prompt_token() -> str:
    if sys.stdin.isatty():
        token = str(typer.prompt("Token", hide_input=True, err=True))
    else:
        token = sys.stdin.readline()
    if not token.strip():
        raise BadInput("no token: enter it at the prompt, on standard input or in CELLRUN_TOKEN")
    return token.strip()
