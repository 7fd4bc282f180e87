"""What stands in front of Django: output is followed to its end, long bodies are stopped."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.db import connection

from controlplane import clock
from controlplane.api import charges
from controlplane.api.body_limit import BodyLimit, Receive, Scope, Send
from controlplane.api.work.follow import LogFollow
from controlplane.commands.attempts.logs import append_output
from controlplane.commands.tenancy.tokens import create_api_token
from controlplane.domain.roles import Role
from controlplane.limits.buckets import Buckets
from controlplane.models import Attempt, Cell, Task
from tests.integration.api.asgi import make_scope
from tests.integration.api.conftest import Caller, change_setting
from tests.integration.api.test_reading import place, submit

pytestmark = pytest.mark.django_db(transaction=True)
DEADLINE_SECONDS = 20


async def behind(scope: Scope, receive: Receive, send: Send) -> None:
    """Stands for Django: reads the whole body, and leaves as Django does if the caller is gone."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        more = message.get("more_body", False)
    await send({"type": "http.response.start", "status": 299, "headers": []})
    await send({"type": "http.response.body", "body": b""})


application = BodyLimit(LogFollow(behind), max_bytes=4 * 1024 * 1024)


@pytest.fixture
def token(submitter: Caller) -> str:
    return create_api_token(user=submitter.user, name="raw", role=Role.SUBMITTER, now=clock.now())


@pytest.fixture
def attempt(submitter: Caller, make_cell: Callable[..., Cell]) -> Attempt:
    submit(submitter)
    return place(Task.objects.get(), make_cell())


def open_request(
    method: str, path: str, token: str | None, *headers: tuple[bytes, bytes]
) -> ApplicationCommunicator:
    named = list(headers)
    if token:
        named.append((b"authorization", f"Bearer {token}".encode()))
    scope = make_scope(method, path, *named)
    return ApplicationCommunicator(application, scope)


async def receive_all(called: ApplicationCommunicator) -> tuple[int, dict[bytes, bytes], bytes]:
    start = await called.receive_output(DEADLINE_SECONDS)
    body = b""
    more = True
    while more:
        message = await called.receive_output(DEADLINE_SECONDS)
        body += message.get("body", b"")
        more = message.get("more_body", False)
    await called.wait(DEADLINE_SECONDS)
    return start["status"], dict(start["headers"]), body


def append(attempt: Attempt, offset: int, content: bytes) -> None:
    append_output(uid=attempt.uid, stream="stdout", offset=offset, content=content)


def release(attempt: Attempt) -> None:
    now = clock.now()
    Attempt.objects.update(state=4, finished_at=now, released_at=now, release_kind="confirmed")


def test_log_follow_streams_until_the_attempt_is_released(attempt: Attempt, token: str) -> None:
    append(attempt, 0, b"one\n")

    async def follow() -> list[bytes]:
        called = open_request(
            "GET", f"/api/v1/attempts/{attempt.uid}/logs?follow=true&tail=1", token
        )
        await called.send_input({"type": "http.request", "body": b"", "more_body": False})
        start = await called.receive_output(DEADLINE_SECONDS)
        assert start["status"] == 200
        assert dict(start["headers"])[b"x-next-cursor"] == b"0"
        seen = [(await called.receive_output(DEADLINE_SECONDS))["body"]]
        await asyncio.to_thread(_in_thread, append, attempt, 4, b"two\n")
        seen.append((await called.receive_output(DEADLINE_SECONDS))["body"])
        await asyncio.to_thread(_in_thread, release, attempt)
        last = await called.receive_output(DEADLINE_SECONDS)
        assert not last.get("more_body", False)
        await called.wait(DEADLINE_SECONDS)
        return seen

    assert asyncio.run(follow()) == [b"one\n", b"two\n"]


def test_follower_without_units_is_passed_to_django(
    attempt: Attempt, token: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which answers 429."""
    monkeypatch.setattr(charges, "_buckets", Buckets(now=lambda: 0.0))
    change_setting(settings, request_units_per_second=1, request_burst_units=1)

    async def follow() -> int:
        path = f"/api/v1/attempts/{attempt.uid}/logs?follow=true"
        called = open_request("GET", path, token)
        await called.send_input({"type": "http.request", "body": b"", "more_body": False})
        return (await receive_all(called))[0]

    append(attempt, 0, b"one\n")
    release(attempt)
    assert [asyncio.run(follow()) for _ in range(2)] == [200, 299]


def test_disconnected_follower_ends_the_stream(attempt: Attempt, token: str) -> None:
    async def follow() -> None:
        called = open_request("GET", f"/api/v1/attempts/{attempt.uid}/logs?follow=true", token)
        await called.receive_output(DEADLINE_SECONDS)
        await called.send_input({"type": "http.disconnect"})
        await called.wait(DEADLINE_SECONDS)

    asyncio.run(follow())


@pytest.mark.parametrize(
    ("query", "with_token"),
    [
        ("follow=true", False),
        ("follow=true&stream=x", True),
        ("follow=perhaps", True),
        ("follow=false", True),
        ("", True),
    ],
)
def test_unauthorized_or_invalid_follow_is_passed_to_django(
    attempt: Attempt, token: str, query: str, with_token: bool
) -> None:
    async def follow() -> int:
        path = f"/api/v1/attempts/{attempt.uid}/logs?{query}"
        called = open_request("GET", path, token if with_token else None)
        await called.send_input({"type": "http.request", "body": b"", "more_body": False})
        return (await receive_all(called))[0]

    assert asyncio.run(follow()) == 299


@pytest.mark.parametrize("announced", [True, False])
@pytest.mark.parametrize(("pieces", "status"), [(4, 413), (2, 299)])
def test_body_over_the_limit_is_refused_with_413(announced: bool, pieces: int, status: int) -> None:
    piece = b"x" * 1_500_000

    async def post() -> tuple[int, dict[bytes, bytes], bytes]:
        headers = [(b"content-type", b"application/json")]
        if announced:
            headers.append((b"content-length", str(pieces * len(piece)).encode()))
        called = open_request("POST", "/api/v1/jobs", None, *headers)
        for left in reversed(range(pieces)):
            await called.send_input({"type": "http.request", "body": piece, "more_body": left > 0})
        return await receive_all(called)

    found, named, body = asyncio.run(post())
    assert found == status
    if status == 413:
        assert named[b"content-type"] == b"application/problem+json"
        assert "4194304 bytes" in json.loads(body)["detail"]


def test_a_body_announced_over_the_limit_does_not_reach_django() -> None:
    """Nor would Django write what comes of it to the disk."""
    reached: list[Scope] = []

    async def record(scope: Scope, receive: Receive, send: Send) -> None:
        reached.append(scope)
        await behind(scope, receive, send)

    async def post(length: int) -> int:
        scope = {"type": "http", "headers": [(b"content-length", str(length).encode())]}
        called = ApplicationCommunicator(BodyLimit(record, max_bytes=10), scope)
        await called.send_input({"type": "http.request", "body": b"x", "more_body": False})
        found, _, _ = await receive_all(called)
        return found

    assert [asyncio.run(post(length)) for length in (10, 11)] == [299, 413]
    assert len(reached) == 1


def _in_thread(work: Callable[..., None], *given: object) -> None:
    try:
        work(*given)
    finally:
        connection.close()
