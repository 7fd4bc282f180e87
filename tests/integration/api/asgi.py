"""Calls an ASGI application as uvicorn does, in front of Django's test client."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from asgiref.testing import ApplicationCommunicator
from django.db import connections

from controlplane.api.body_limit import Application

DEADLINE_SECONDS = 20


@dataclass(frozen=True, slots=True)
class AsgiAnswer:
    """A whole response."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes

    def values(self, name: bytes) -> list[str]:
        """The values of a header, which is in lower case."""
        return [value.decode() for found, value in self.headers if found.lower() == name]

    @property
    def json(self) -> Any:
        """The document."""
        return json.loads(self.body)


def make_scope(
    method: str, path: str, *headers: tuple[bytes, bytes], peer: str = "127.0.0.1"
) -> dict[str, Any]:
    """The ASGI scope of a request."""
    path, _, query = path.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(b"host", b"localhost"), *headers],
        "server": ("localhost", 80),
        "client": (peer, 1),
    }


def call(
    application: Application,
    method: str,
    path: str,
    *headers: tuple[bytes, bytes],
    body: bytes = b"",
    peer: str = "127.0.0.1",
) -> AsgiAnswer:
    """One request and its response."""
    scope = make_scope(method, path, *headers, peer=peer)
    # Otherwise the thread of the request would leave its connection open.
    settings = connections.settings["default"]
    max_age = settings["CONN_MAX_AGE"]
    settings["CONN_MAX_AGE"] = 0
    try:
        return asyncio.run(_call(application, scope, body))
    finally:
        settings["CONN_MAX_AGE"] = max_age


async def _call(application: Application, scope: dict[str, Any], body: bytes) -> AsgiAnswer:
    called = ApplicationCommunicator(application, scope)
    await called.send_input({"type": "http.request", "body": body, "more_body": False})
    start = await called.receive_output(DEADLINE_SECONDS)
    content, more = b"", True
    while more:
        message = await called.receive_output(DEADLINE_SECONDS)
        content += message.get("body", b"")
        more = message.get("more_body", False)
    await called.wait(DEADLINE_SECONDS)
    return AsgiAnswer(start["status"], list(start["headers"]), content)
