"""Stream changes of jobs and tasks as server-sent events, in front of Django.

Through Django, each stream would hold a thread.
"""

import asyncio
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import structlog
from django.db import InterfaceError, OperationalError
from django.http import HttpResponse, QueryDict
from rest_framework.exceptions import AuthenticationFailed, Throttled

from controlplane import clock
from controlplane.api import charges
from controlplane.api.body_limit import Application, Receive, Scope, Send
from controlplane.api.problems import BadQuery, problem
from controlplane.api.requests import Parameters
from controlplane.api.streams.connections import (
    STREAM_HEADERS,
    check_token,
    close_database,
    read_token,
    wait_for_disconnect,
)
from controlplane.api.streams.event_feed import EventFeed
from controlplane.api.streams.event_query import (
    EVENT_PARAMETERS,
    RESUME_HEADER,
    EventQuery,
    read_event_query,
    write_position,
)
from controlplane.api.streams.token_watches import MAX_STREAMS, TokenWatch, TokenWatches
from controlplane.domain.errors import NotFound
from controlplane.domain.roles import Access
from controlplane.queries.events import PositionGone
from controlplane.queries.tenancy.access import load_access
from controlplane.spec import InvalidSpec

log = structlog.get_logger(__name__)

PATH = "/api/v1/events"
MEDIA_TYPE = "text/event-stream"
KEEP_ALIVE_SECONDS = 15.0
# Until the transactions have ended that were open at the first read of the history.
START_SECONDS = 10.0
# A client that takes no bytes for this time is disconnected; it continues with its position.
SEND_SECONDS = 30.0
RECONNECT_MILLISECONDS = 2_000


@dataclass(frozen=True, slots=True)
class _Admission:
    query: EventQuery
    token: bytes
    access: Access


class EventStream:
    """ASGI middleware that answers valid requests for events and passes on all others."""

    def __init__(self, application: Application, feed: EventFeed | None = None) -> None:
        self._application = application
        self._feed = feed or EventFeed()
        self._watches = TokenWatches()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        admitted = None
        if scope["type"] == "http" and scope["method"] == "GET" and scope["path"] == PATH:
            admitted = await asyncio.to_thread(_admit, scope)
        if admitted is None:
            await self._application(scope, receive, send)
            return
        with self._watches.entered(admitted.token, admitted.access) as watch:
            if watch is None:
                text = f"the token has {MAX_STREAMS} streams already: end one of them"
                await _respond(problem(429, text, headers={"Retry-After": "10"}), send)
                return
            disconnected = asyncio.ensure_future(wait_for_disconnect(receive))
            try:
                async with self._feed.opened():
                    await _Stream(admitted.query, self._feed, watch, disconnected, send).run()
            finally:
                disconnected.cancel()


class _Stream:
    """One response."""

    def __init__(
        self,
        query: EventQuery,
        feed: EventFeed,
        watch: TokenWatch,
        disconnected: "asyncio.Future[None]",
        send: Send,
    ) -> None:
        self._query = query
        self._feed = feed
        self._watch = watch
        self._disconnected = disconnected
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._sent_at = 0.0

    async def run(self) -> None:
        """Send events until the end of the query, of the connection or of the token."""
        if not await self._feed.wait_until_settled(START_SECONDS):
            text = "a transaction delays the stream: try again later"
            await _respond(problem(503, text, headers={"Retry-After": "5"}), self._send)
            return
        settled = self._feed.settled
        assert settled is not None
        self._position = settled if self._query.start is None else self._query.start
        headers = [(b"content-type", f"{MEDIA_TYPE}; charset=utf-8".encode()), *STREAM_HEADERS]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        try:
            await self._write(f"retry: {RECONNECT_MILLISECONDS}\n".encode() + self._mark())
            await self._follow()
            if not self._disconnected.done():
                await self._send({"type": "http.response.body", "body": b""})
        except (TimeoutError, OperationalError, InterfaceError) as fault:
            # The client continues with its position, when it or the database responds again.
            log.info("event_stream_ended", cause=type(fault).__name__)

    async def _follow(self) -> None:
        end = self._query.end
        while not self._disconnected.done():
            if not await self._watch.is_valid():
                return
            projects = self._query.visible_projects(self._watch.access)
            if self._query.project_id is not None and projects is not None and not projects:
                return
            changed = self._feed.changed
            page = await self._feed.next_page(self._query, self._position)
            if page is not None:
                found = page.select(self._query, projects, self._position)
                self._watch.events += len(found)
                self._position = page.end
                if found:
                    await self._write(b"".join(event.text for event in found))
            elif end is not None and self._position >= end:
                await self._write(self._mark())
                return
            else:
                await self._rest(changed)

    async def _rest(self, changed: "asyncio.Future[None]") -> None:
        """Wait for changes; send a comment with the position if there were none for a while."""
        due_at = self._sent_at + KEEP_ALIVE_SECONDS
        until = min(due_at, self._watch.due_at) - self._loop.time()
        waits = [self._disconnected, changed]
        await asyncio.wait(waits, timeout=max(0.0, until), return_when=asyncio.FIRST_COMPLETED)
        if self._loop.time() >= due_at and not self._disconnected.done():
            await self._write(b": keep-alive\n" + self._mark())

    def _mark(self) -> bytes:
        """Return the position without an event."""
        assert self._feed.now is not None
        return f"id: {write_position(self._position, self._feed.now)}\n\n".encode()

    async def _write(self, body: bytes) -> None:
        """Send a part. Raise TimeoutError if the client does not take it."""
        message = {"type": "http.response.body", "body": body, "more_body": True}
        await asyncio.wait_for(self._send(message), SEND_SECONDS)
        self._sent_at = self._loop.time()


def _admit(scope: Scope) -> _Admission | None:
    """Return the stream, or None if Django must respond with an error."""
    request: Any = SimpleNamespace(query_params=QueryDict(scope["query_string"]))
    resumed_at = dict(scope["headers"]).get(RESUME_HEADER.lower().encode(), b"")
    try:
        token = read_token(scope)
        credential = check_token(token)
        charges.admit_credential(credential)
        access = load_access(credential)
        parameters = Parameters(request, *(known.name for known in EVENT_PARAMETERS))
        text = resumed_at.decode("latin-1")
        query = read_event_query(parameters, access, text, now=clock.now())
        return _Admission(query, token or b"", access)
    except (AuthenticationFailed, Throttled, BadQuery, InvalidSpec, NotFound, PositionGone):
        return None
    except (OperationalError, InterfaceError):
        return None
    finally:
        close_database()


async def _respond(answer: HttpResponse, send: Send) -> None:
    headers = [(name.lower().encode(), value.encode()) for name, value in answer.items()]
    await send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": answer.content})
