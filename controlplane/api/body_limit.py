"""Reject oversized bodies in front of Django, which would first write them to disk."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from controlplane.api.problems import problem

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
# Libraries declare different types for the three equivalent arguments.
Application = Callable[[Any, Any, Any], Awaitable[None]]

# Discard up to this much of an oversized body: a caller that is still sending would otherwise see a
# broken connection instead of the response.
MAX_DRAINED_BYTES = 64 * 1024 * 1024


class BodyLimit:
    """ASGI middleware that responds 413 to a body over `max_bytes`, even without Content-Length."""

    def __init__(self, application: Application, *, max_bytes: int) -> None:
        self._application = application
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        if _announced_length(scope) > self._max_bytes:
            await self._refuse(0, receive, send)
            return
        length = 0

        async def receive_counted() -> Message:
            nonlocal length
            message = await receive()
            length += len(message.get("body", b""))
            # On a disconnect, Django stops and cleans up.
            return message if length <= self._max_bytes else {"type": "http.disconnect"}

        await self._application(scope, receive_counted, send)
        if length > self._max_bytes:
            await self._refuse(length, receive, send)

    async def _refuse(self, length: int, receive: Receive, send: Send) -> None:
        more = True
        while more and length <= MAX_DRAINED_BYTES:
            message = await receive()
            length += len(message.get("body", b""))
            more = message["type"] == "http.request" and message.get("more_body", False)
        await send_response(
            send, problem(413, f"the request body must have at most {self._max_bytes} bytes")
        )


async def send_response(send: Send, response: Any) -> None:
    """Send a Django response through ASGI, outside of Django."""
    headers = [(name.lower().encode(), value.encode()) for name, value in response.items()]
    headers.append((b"content-length", str(len(response.content)).encode()))
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": response.content})


def _announced_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:20])
    return 0
