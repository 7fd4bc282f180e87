"""Respond 304 to polls of unchanged pages in front of Django.

An open page polls each four seconds. Through Django, a poll takes a thread and three statements;
here, all polls of a process share one read of the newest changes each half second.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256

from asgiref.sync import sync_to_async
from django.db import Error, connection

from controlplane.admin.live import VALID_SECONDS
from controlplane.api.body_limit import Application, Message, Receive, Scope, Send
from controlplane.queries.pages.versions import PageVersion, load_newest_changes

PREFIX = "/admin/"
_VALID_SECONDS = VALID_SECONDS.lower().encode()
# The age up to which polls use the newest changes that were read.
_READ_SECONDS = 0.5
_MOST_PAGES = 10_000


@dataclass(frozen=True, slots=True)
class _KnownPage:
    """A page that Django responded with, the changes before the request, and its end in time."""

    changes: PageVersion
    until: float


class UnchangedPages:
    """ASGI middleware that responds 304 to polls, and passes on all others.

    A page is unchanged while nothing in the installation changed since Django rendered or confirmed
    it for the same cookies. So a 304 contains nothing that depends on the session.
    """

    def __init__(
        self, application: Application, *, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._application = application
        self._monotonic = monotonic
        self._pages: OrderedDict[bytes, _KnownPage] = OrderedDict()
        self._newest: PageVersion | None = None
        self._read_at = float("-inf")
        self._lock = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        is_page = scope["type"] == "http" and scope["path"].startswith(PREFIX)
        if not is_page or scope["method"] != "GET":
            await self._application(scope, receive, send)
            return
        newest = await self._read_newest()
        headers = dict(scope["headers"])
        etag = headers.get(b"if-none-match")
        if etag and headers.get(b"hx-request") == b"true":
            found = self._pages.get(_key(scope, etag))
            if found is not None and found.changes == newest and found.until > self._monotonic():
                await _send_unchanged(send, etag)
                return

        async def send_noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = self._note(scope, message, newest)
            await send(message)

        await self._application(scope, receive, send_noted)

    def _note(self, scope: Scope, message: Message, newest: PageVersion | None) -> Message:
        """Remember a live page by its ETag; return the message without the header for this."""
        headers = {name.lower(): value for name, value in message.get("headers", ())}
        valid, etag = headers.get(_VALID_SECONDS), headers.get(b"etag")
        if valid is None or etag is None:
            return message
        if newest is not None:
            key = _key(scope, etag)
            self._pages[key] = _KnownPage(newest, self._monotonic() + float(valid))
            self._pages.move_to_end(key)
            if len(self._pages) > _MOST_PAGES:
                self._pages.popitem(last=False)
        kept = [item for item in message["headers"] if item[0].lower() != _VALID_SECONDS]
        return {**message, "headers": kept}

    async def _read_newest(self) -> PageVersion | None:
        """Return the newest changes, read at most half a second ago; None without a database."""
        async with self._lock:
            if (now := self._monotonic()) >= self._read_at + _READ_SECONDS:
                self._newest = await sync_to_async(_load, thread_sensitive=False)()
                # After a failure, the requests that waited for this read do not wait for another.
                self._read_at = self._monotonic() if self._newest is None else now
            return self._newest


def _load() -> PageVersion | None:
    try:
        return load_newest_changes()
    except Error:
        return None
    finally:
        connection.close()


def _key(scope: Scope, etag: bytes) -> bytes:
    """Return a digest of the page, the cookies of its user, and its version."""
    cookies = b";".join(value for name, value in scope["headers"] if name == b"cookie")
    target = scope["path"].encode() + b"?" + scope["query_string"]
    return sha256(b"\n".join((target, cookies, etag))).digest()


async def _send_unchanged(send: Send, etag: bytes) -> None:
    headers = [(b"etag", etag), (b"cache-control", b"no-store"), (b"vary", b"HX-Request, Cookie")]
    await send({"type": "http.response.start", "status": 304, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
