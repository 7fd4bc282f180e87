"""Followers of logs are answered in front of Django: they need a token and a role."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from controlplane import clock
from controlplane.api import charges
from controlplane.api.work.follow import LogFollow
from controlplane.commands.tenancy.accounts import create_user
from controlplane.commands.tenancy.tokens import create_api_token
from controlplane.domain.roles import Role
from controlplane.limits.buckets import Buckets
from controlplane.models import ApiToken, Membership, Project
from tests.integration.api.conftest import change_setting
from tests.integration.loop.conftest import Loop


def open_follow(uid: object, authorization: bytes | None) -> tuple[bool, list[dict[str, Any]]]:
    """Open a follow request and hang up: whether it was passed on, and what was sent."""
    passed: list[Any] = []
    sent: list[dict[str, Any]] = []

    async def pass_on(scope: Any, receive: Any, send: Any) -> None:
        passed.append(scope)

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": f"/api/v1/attempts/{uid}/logs",
        "query_string": b"follow=true",
        "headers": [] if authorization is None else [(b"authorization", authorization)],
    }
    asyncio.run(LogFollow(pass_on)(scope, receive, send))
    return bool(passed), sent


@pytest.mark.parametrize("presented", [None, b"Bearer wrong", b"Basic {token}", b"Bearer"])
def test_follow_requires_a_valid_token(loop: Loop, presented: bytes | None) -> None:
    uid, token = attempt_and_token(loop)
    if presented is not None:
        presented = presented.replace(b"{token}", token.encode())
    assert open_follow(uid, presented) == (True, [])


def test_follow_refuses_an_expired_token(loop: Loop) -> None:
    uid, token = attempt_and_token(loop)
    valid = f"Bearer {token}".encode()
    was_passed_on, sent = open_follow(uid, valid)
    assert (was_passed_on, sent[0]["status"]) == (False, 200)
    ApiToken.objects.update(expires_at=clock.now())
    assert open_follow(uid, valid) == (True, [])


def test_follow_of_another_project_is_not_admitted(loop: Loop) -> None:
    uid, token = attempt_and_token(loop)
    Membership.objects.all().delete()
    assert open_follow(uid, f"Bearer {token}".encode()) == (True, [])


# What each caller has: a role, on this (the project of the attempt, its domain, another project or
# the installation), and whether the token is limited to that project.
CALLERS = {
    "viewer": ("viewer", "project", False, True),
    "submitter": ("submitter", "project", False, True),
    "manager of the domain": ("manager", "domain", False, True),
    "auditor": ("auditor", "installation", False, True),
    "limited to the project": ("viewer", "project", True, True),
    "manager of another project": ("manager", "other", False, False),
    "limited to another project": ("viewer", "domain", True, False),
    "auditor, limited to another project": ("auditor", "installation", True, False),
}


@pytest.mark.parametrize("caller", CALLERS)
def test_logs_are_followed_by_readers_of_the_project_only(loop: Loop, caller: str) -> None:
    role, place, is_limited, may_follow = CALLERS[caller]
    uid, _ = attempt_and_token(loop)
    home = Project.objects.get()
    other = Project.objects.create(domain=home.domain, name="other")
    user, _ = create_user(name="reader", password=None, is_operator=False)
    scope: dict[str, Any] = {
        "project": {"project": home},
        "domain": {"domain": home.domain},
        "other": {"project": other},
        "installation": {},
    }[place]
    Membership.objects.create(user=user, role=role, created_at=clock.now(), **scope)
    token = create_api_token(user=user, name="t", role=Role.VIEWER, now=clock.now())
    if is_limited:
        bound_to = home.pk if place == "project" else other.pk
        ApiToken.objects.filter(user=user).update(bound_to=[bound_to])
    was_passed_on, sent = open_follow(uid, f"Bearer {token}".encode())
    assert was_passed_on is not may_follow
    assert [message.get("status") for message in sent[:1]] == ([200] if may_follow else [])


@pytest.mark.parametrize("model", [ApiToken, Membership])
def test_revoked_token_or_role_ends_the_stream(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, model: type[ApiToken | Membership]
) -> None:
    monkeypatch.setattr("controlplane.api.work.follow.TOKEN_SECONDS", 0)

    def revoke() -> None:
        model.objects.all().delete()
        connection.close()

    assert follow_to_its_end(loop, revoke) == ["http.response.start", "http.response.body"]


def test_stream_ends_when_its_token_has_no_units(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    monkeypatch.setattr("controlplane.api.work.follow.TOKEN_SECONDS", 0)
    monkeypatch.setattr(charges, "_buckets", Buckets(now=lambda: 0.0))
    change_setting(settings, request_units_per_second=1, request_burst_units=20)
    assert follow_to_its_end(loop, lambda: None) == ["http.response.start", "http.response.body"]


def follow_to_its_end(loop: Loop, begun: Callable[[], None]) -> list[str]:
    """Follow a running attempt, call `begun` at the start; return the types of what was sent."""
    uid, token = attempt_and_token(loop)
    sent: list[dict[str, Any]] = []

    async def never() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        if not sent:
            await asyncio.to_thread(begun)
        sent.append(message)

    async def pass_on(*_: Any) -> None:
        raise AssertionError("it was admitted")

    scope = {
        "type": "http",
        "method": "GET",
        "path": f"/api/v1/attempts/{uid}/logs",
        "query_string": b"follow=true",
        "headers": [(b"authorization", f"Bearer {token}".encode())],
    }
    following = LogFollow(pass_on)(scope, never, send)
    asyncio.run(asyncio.wait_for(following, timeout=60))
    return [message["type"] for message in sent]


def attempt_and_token(loop: Loop) -> tuple[object, str]:
    """An attempt, and a valid token."""
    loop.cell()
    job = loop.submit()
    loop.place()
    [attempt] = loop.attempts(job)
    token = create_api_token(user=loop.owner, name="test", role=Role.SUBMITTER, now=clock.now())
    return attempt.uid, token
