"""`cellrun login`: store the server's URL and the token for later commands."""

import os
import sys
from typing import Annotated

import typer

from client.api.session import Session
from client.display.terminal import JsonFlag, show
from client.errors import BadInput
from client.settings import ClientSettings, check_url, store_settings


def login(
    url: Annotated[str, typer.Argument(help="The server, for example http://127.0.0.1:8000.")],
    token: Annotated[
        str | None,
        typer.Option(
            help="Your token. Others can see it in the process list: omit it to be asked."
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Store a server's URL and your token after a test request."""
    token = token or os.environ.get("CELLRUN_TOKEN") or _prompt_token()
    settings = ClientSettings(check_url(url), token)
    with Session(settings) as session:
        list(session.jobs(limit=1))
    path = store_settings(settings)
    answer = {"url": settings.url, "stored_in": str(path)}
    show(as_json, answer, f"logged in to {settings.url} (stored in {path})")


def _prompt_token() -> str:
    if sys.stdin.isatty():
        token = str(typer.prompt("Token", hide_input=True, err=True))
    else:
        token = sys.stdin.readline()
    if not token.strip():
        raise BadInput("no token: enter it at the prompt, on standard input or in CELLRUN_TOKEN")
    return token.strip()
