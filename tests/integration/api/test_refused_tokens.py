"""Requests with a refused token are logged, counted, limited, and audited once a minute."""

import logging
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from controlplane import clock
from controlplane.api import charges, refused_tokens
from controlplane.config.asgi import application
from controlplane.limits.buckets import Buckets
from controlplane.models import ApiToken, AuditLine
from tests.integration.admin.test_login import Clock, events
from tests.integration.api.asgi import call
from tests.integration.api.conftest import Caller, change_setting
from tests.integration.api.test_metrics import figures

pytestmark = pytest.mark.django_db

UNKNOWN = "cr_unknown-unknown-unknown"
UID = "00000000-0000-7000-8000-000000000000"


@pytest.fixture(autouse=True)
def seconds(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Full buckets, whose clock stands still."""
    found = Clock()
    monkeypatch.setattr(refused_tokens, "_audited", Buckets(now=found))
    monkeypatch.setattr(charges, "_buckets", Buckets(now=found))
    return found


def guess(address: str = "10.0.0.1", path: str = "/api/v1/jobs", scheme: str = "Bearer") -> int:
    headers = {"Authorization": f"{scheme} {UNKNOWN}"}
    return Client(REMOTE_ADDR=address).get(path, headers=headers).status_code


def lines() -> list[AuditLine]:
    return list(AuditLine.objects.filter(action="refuse.token").order_by("pk"))


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("path", ["/api/v1/jobs", f"/api/v1/attempts/{UID}/logs?follow=true"])
def test_a_refused_token_is_logged_and_audited_with_the_id_and_address_of_the_request(
    path: str, caplog: pytest.LogCaptureFixture
) -> None:
    token = (b"authorization", f"Bearer {UNKNOWN}".encode())
    with caplog.at_level(logging.INFO):
        answer = call(
            application, "GET", path, token, (b"x-request-id", b"r-1"), peer="203.0.113.7"
        )
    assert answer.status == 401
    [event] = events(caplog, "token_refused")
    assert (event["request_id"], event["address"]) == ("r-1", "203.0.113.7")
    [line] = lines()
    reason = "the token is unknown or has expired: use another one"
    assert event["reason"] == line.text == reason
    assert (line.actor, line.via, line.token) == ("unknown (token)", "token", "")
    assert (line.request_id, line.address) == ("r-1", "203.0.113.7")
    assert UNKNOWN[3:] not in f"{caplog.text}{caplog.records}{vars(line)}"


def test_an_address_has_one_audit_line_per_minute(
    seconds: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    for address in ("10.0.0.1", "2001:db8::1", "2001:db8::2"):
        for _ in range(5):
            assert guess(address) == 401
    assert [line.address for line in lines()] == ["10.0.0.1", "2001:db8::1"]
    assert len(events(caplog, "token_refused")) == 15
    seconds.seconds += 59
    guess()
    assert len(lines()) == 2
    seconds.seconds += 1
    guess()
    assert len(lines()) == 3


@pytest.mark.parametrize("path", ["/api/v1/whoami", "/metrics"])
def test_refused_tokens_are_charged_to_their_address_and_valid_ones_are_not(
    path: str, operator: Caller, settings: Any
) -> None:
    change_setting(settings, request_units_per_second=1, request_burst_units=3)
    assert [guess(path=path) for _ in range(4)] == [401, 401, 401, 429]
    assert guess("10.0.0.2", path) == 401
    valid = Client(REMOTE_ADDR="10.0.0.1").get(path, headers=operator.headers)
    assert valid.status_code == 200


@pytest.mark.parametrize("kind", ["expired", "inactive"])
def test_a_former_token_is_audited_too(kind: str, submitter: Caller) -> None:
    if kind == "expired":
        ApiToken.objects.update(expires_at=clock.now() - timedelta(seconds=1))
    else:
        submitter.user.is_active = False
        submitter.user.save()
    assert submitter.get("/jobs").status == 401
    assert len(lines()) == 1


def test_another_scheme_counts_and_a_request_without_a_token_does_not() -> None:
    assert guess(scheme="Basic") == 401
    assert Client(REMOTE_ADDR="10.0.0.2").get("/api/v1/jobs").status_code == 401
    found = [(line.address, line.text) for line in lines()]
    assert found == [("10.0.0.1", "use the header Authorization: Bearer TOKEN")]


def test_metrics_count_the_audited_refusals() -> None:
    assert figures()["cellrun_refusals_audited", "token"] == 0
    for number in range(3):
        guess(f"10.0.1.{number}")
    found = figures()
    assert found["cellrun_refusals_audited", "token"] == 3
    assert found["cellrun_refusals_audited", "login"] == 0
