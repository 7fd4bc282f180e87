"""Stream `logs?follow=true` until the attempt has ended, in front of Django.

Through Django, each follower would hold a thread.
"""

import asyncio
import re
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from django.conf import settings
from django.http import QueryDict
from rest_framework.exceptions import AuthenticationFailed, Throttled

from controlplane.api import charges
from controlplane.api.body_limit import Application, Receive, Scope, Send
from controlplane.api.problems import BadQuery
from controlplane.api.requests import Parameters
from controlplane.api.streams.connections import (
    STREAM_HEADERS,
    TOKEN_SECONDS,
    check_token,
    close_database,
    read_token,
    wait_for_disconnect,
)
from controlplane.api.walls import check_attempt
from controlplane.api.work.attempts import LOG_PARAMETERS, read_log_query
from controlplane.domain.errors import NotFound
from controlplane.queries.attempts import artifacts
from controlplane.queries.tenancy.access import load_access
from controlplane.queries.views import attempts
from controlplane.storage.interface import StoreUnavailable

_PATH = re.compile(r"/api/v1/attempts/([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})/logs")
# New output is sent within this time; the attempt itself is read less often.
POLL_SECONDS = 0.25
# Each read of an object store takes a listing, which is charged.
OBJECT_STORE_POLL_SECONDS = 1.0
POLLS_PER_STATE_CHECK = 4
# Between two reads from a store that does not answer.
STORE_SECONDS = 2.0
# What a stream costs between two of these checks: about a millisecond of the process per second.
FOLLOW_UNITS = 5.0
# The last output may arrive shortly after the attempt's release.
FINAL_EMPTY_POLLS = 4


@dataclass(slots=True)
class _Follower:
    uid: UUID
    stream: str
    offset: int
    token: bytes


class LogFollow:
    """ASGI middleware that answers valid follow requests and passes on all others."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        follower = None
        if scope["type"] == "http" and scope["method"] == "GET" and _is_follow_requested(scope):
            follower = await asyncio.to_thread(_admit, scope)
        if follower is None:
            await self._application(scope, receive, send)
            return
        disconnected = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            await _follow(follower, disconnected, send)
        finally:
            disconnected.cancel()


def _is_follow_requested(scope: Scope) -> bool:
    return b"follow=" in scope["query_string"] and bool(_PATH.fullmatch(scope["path"]))


def _admit(scope: Scope) -> _Follower | None:
    """Return the follower, or None if Django must respond: with present output, or an error."""
    match, token = _PATH.fullmatch(scope["path"]), read_token(scope)
    request: Any = SimpleNamespace(query_params=QueryDict(scope["query_string"]))
    try:
        parameters = Parameters(request, *LOG_PARAMETERS)
        stream, after, tail = read_log_query(parameters)
        if match is None or token is None or not parameters.flag("follow"):
            return None
        credential = check_token(token)
        charges.admit_credential(credential)
        uid = UUID(match[1])
        check_attempt(load_access(credential), uid)
        start = artifacts.find_start(uid, stream, after=after, tail=tail)
        return _Follower(uid, stream, start, token)
    except (BadQuery, AuthenticationFailed, Throttled, NotFound, StoreUnavailable):
        return None
    finally:
        close_database()


async def _follow(follower: _Follower, disconnected: "asyncio.Future[None]", send: Send) -> None:
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        *STREAM_HEADERS,
        (b"x-next-cursor", str(follower.offset).encode()),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    polls, empty_polls, is_over = 0, 0, False
    loop = asyncio.get_running_loop()
    checked_at = loop.time()
    remote = settings.CELLRUN.has_object_store
    pause = OBJECT_STORE_POLL_SECONDS if remote else POLL_SECONDS
    while not disconnected.done() and empty_polls < FINAL_EMPTY_POLLS:
        if loop.time() >= checked_at + TOKEN_SECONDS:
            if not await asyncio.to_thread(_is_admitted, follower):
                break
            checked_at = loop.time()
        try:
            piece = await asyncio.to_thread(_read, follower)
        except StoreUnavailable:
            await asyncio.wait([disconnected], timeout=STORE_SECONDS)
            continue
        if piece:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
            empty_polls = 0
            continue
        if not is_over and polls % POLLS_PER_STATE_CHECK == 0:
            is_over = await asyncio.to_thread(_is_over, follower.uid)
        polls += 1
        empty_polls += is_over
        await asyncio.wait([disconnected], timeout=pause)
    if not disconnected.done():
        await send({"type": "http.response.body", "body": b""})


def _read(follower: _Follower) -> bytes:
    piece = artifacts.read_output(follower.uid, follower.stream, after=follower.offset, tail=None)
    follower.offset = piece.next_offset
    return piece.content


def _is_admitted(follower: _Follower) -> bool:
    """Charge for the stream; return whether the token is valid, may read the attempt and has units.

    Many streams of one token would take all time of the process, at the cost of one request each.
    """
    try:
        credential = check_token(follower.token)
        check_attempt(load_access(credential), follower.uid)
        charges.admit_credential(credential, FOLLOW_UNITS)
    except (AuthenticationFailed, NotFound, Throttled):
        return False
    finally:
        close_database()
    return True


def _is_over(uid: UUID) -> bool:
    """Return whether the attempt is released, or deleted."""
    try:
        return attempts.get_attempt(uid)["released_at"] is not None
    except NotFound:
        return True
    finally:
        close_database()
