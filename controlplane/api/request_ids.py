"""Give each request an id, which is in its response, its log lines and its problem documents."""

import re
from uuid import uuid4

from structlog.contextvars import bound_contextvars

from controlplane.api.body_limit import Application, Message, Receive, Scope, Send
from controlplane.contract.trace_context import read_traceparent

HEADER = "X-Request-Id"
_NAME = HEADER.lower().encode()
# Without quotes, spaces and line ends, so that it is safe in headers, logs and shells.
_ACCEPTED = re.compile(rb"[A-Za-z0-9._-]{1,64}")


class RequestIds:
    """ASGI middleware that takes the id of the request's X-Request-Id, or creates one."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        request_id = _find_id(scope) or uuid4().hex

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                header = (_NAME, request_id.encode())
                message = {**message, "headers": [*message.get("headers", ()), header]}
            await send(message)

        trace = _find_trace(scope)
        bound = {"request_id": request_id, **({"traceparent": trace} if trace else {})}
        with bound_contextvars(**bound):
            await self._application(scope, receive, send_named)


def _find_trace(scope: Scope) -> str | None:
    """Return the valid W3C traceparent of the request, which jobs that it submits join."""
    given = [value for name, value in scope["headers"] if name == b"traceparent"]
    text = given[0].decode("ascii", "replace") if len(given) == 1 else ""
    return text if read_traceparent(text) is not None else None


def _find_id(scope: Scope) -> str | None:
    given = [value for name, value in scope["headers"] if name == _NAME]
    is_accepted = len(given) == 1 and _ACCEPTED.fullmatch(given[0])
    return given[0].decode("ascii") if is_accepted else None
