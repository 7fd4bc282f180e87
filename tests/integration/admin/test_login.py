"""The login with a password: limited by name and by address, logged, audited, and for 12 hours."""

import logging
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.http import HttpResponse
from django.test import Client

from controlplane.admin.login import form as login
from controlplane.clock import now
from controlplane.commands.tenancy.tokens import create_api_token
from controlplane.domain.roles import Role
from controlplane.limits.buckets import Buckets
from controlplane.models import AuditLine

PASSWORD = "correct horse battery"
FAILURES_OF_A_NAME, FAILURES_OF_AN_ADDRESS = 10, 30

pytestmark = pytest.mark.django_db


class Clock:
    """The clock of the buckets, which stands still."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Full buckets."""
    found = Clock()
    monkeypatch.setattr(login, "_attempts", Buckets(now=found))
    return found


@pytest.fixture(autouse=True)
def users(clock: Clock) -> None:
    User.objects.create_superuser("user-1", password=PASSWORD)
    User.objects.create_user("user-2", password=PASSWORD)


def log_in(name: str, password: str, address: str = "10.0.0.1") -> HttpResponse:
    body = {"username": name, "password": password, "next": "/admin/"}
    return Client(REMOTE_ADDR=address).post("/admin/login/", body)


def succeeds(name: str = "user-1", address: str = "10.0.0.1") -> bool:
    answer = log_in(name, PASSWORD, address)
    assert (answer.status_code == 302) == ("sessionid" in answer.cookies)
    return answer.status_code == 302


def test_a_name_with_ten_failures_is_refused_even_with_its_password(clock: Clock) -> None:
    for number in range(FAILURES_OF_A_NAME):
        log_in("user-1", f"wrong {number}", f"10.0.1.{number}")
    page = log_in("user-1", PASSWORD, "10.0.2.1")
    assert b"Too many failed logins. Try again in 60 s." in page.content
    assert "sessionid" not in page.cookies
    assert not succeeds("USER-1", "10.0.2.1")
    clock.seconds += 60
    assert succeeds("user-1", "10.0.2.1")


def test_a_refused_name_keeps_its_sessions_and_tokens(clock: Clock) -> None:
    user = User.objects.get(username="user-1")
    session = Client(REMOTE_ADDR="10.0.1.1")
    session.force_login(user)
    token = create_api_token(user=user, name="test", role=Role.OPERATOR, now=now())
    for _ in range(FAILURES_OF_A_NAME):
        log_in("user-1", "wrong", "10.0.1.1")
    assert not succeeds("user-1", "10.0.1.1")
    assert session.get("/admin/").status_code == 200
    headers = {"Authorization": f"Bearer {token}"}
    assert session.get("/api/v1/whoami", headers=headers).status_code == 200


def test_an_address_with_thirty_failures_is_refused_for_every_name(clock: Clock) -> None:
    for number in range(FAILURES_OF_AN_ADDRESS):
        log_in(f"unknown-{number}", "wrong", "10.0.0.7")
    assert not succeeds(address="10.0.0.7")
    assert succeeds(address="10.0.0.8")
    clock.seconds += 10
    assert succeeds(address="10.0.0.7")


def test_a_refused_address_does_not_use_up_the_logins_of_a_name(clock: Clock) -> None:
    for number in range(FAILURES_OF_AN_ADDRESS):
        log_in(f"unknown-{number}", "wrong", "10.0.0.7")
    for _ in range(FAILURES_OF_A_NAME):
        log_in("user-1", "wrong", "10.0.0.7")
    assert succeeds(address="10.0.0.8")


def test_successful_logins_are_not_limited() -> None:
    assert all(succeeds() for _ in range(FAILURES_OF_AN_ADDRESS + 1))


@pytest.mark.parametrize(("name", "password"), [("user-1", "wrong"), ("unknown-1", PASSWORD)])
def test_a_failed_login_is_logged_and_audited(
    name: str, password: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        log_in(name, password, "10.0.0.9")
    line = AuditLine.objects.get(action="refuse.login")
    assert (line.actor, line.via, line.address) == (name, "session", "10.0.0.9")
    (event,) = events(caplog, "login_failed")
    assert (event["user"], event["address"]) == (name, "10.0.0.9")
    assert password not in f"{line.subject}{line.text}{caplog.text}"


@pytest.mark.parametrize("is_staff", [False, True])
def test_a_deactivated_user_is_refused_and_audited(is_staff: bool) -> None:
    User.objects.filter(username="user-2").update(is_active=False, is_staff=is_staff)
    assert not succeeds("user-2")
    assert AuditLine.objects.filter(action="refuse.login").count() == 1


@pytest.mark.parametrize(
    ("following", "expected"),
    [
        ("/admin/", "/account/"),
        ("/admin/controlplane/job/", "/account/"),
        ("/account/tokens/new/", "/account/tokens/new/"),
        ("https://evil.example/", "/account/"),
    ],
)
def test_a_user_without_access_to_the_admin_is_sent_to_the_account(
    following: str, expected: str
) -> None:
    body = {"username": "user-2", "password": PASSWORD, "next": following}
    browser = Client()
    answer = browser.post("/admin/login/", body)
    assert (answer.status_code, answer["Location"]) == (302, expected)
    assert answer.cookies["sessionid"]["max-age"] == 12 * 3600
    assert browser.get("/admin/").status_code == 302
    assert AuditLine.objects.get(action="log_in.user").actor == "user-2"


def test_a_user_with_access_to_the_admin_may_be_sent_to_the_account() -> None:
    body = {"username": "user-1", "password": PASSWORD, "next": "/account/"}
    assert Client().post("/admin/login/", body)["Location"] == "/account/"


def test_a_login_is_logged_and_audited(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert succeeds(address="2001:db8::9")
    line = AuditLine.objects.get(action="log_in.user")
    assert (line.actor, line.via, line.address) == ("user-1", "session", "2001:db8::9")
    assert len(events(caplog, "logged_in")) == 1


def test_refused_attempts_are_logged_and_fill_no_table(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(FAILURES_OF_A_NAME + 5):
        log_in("user-1", "wrong")
    assert AuditLine.objects.filter(action="refuse.login").count() == FAILURES_OF_A_NAME
    assert len(events(caplog, "login_throttled")) == 5


def test_an_incomplete_form_is_no_attempt() -> None:
    for _ in range(FAILURES_OF_A_NAME):
        log_in("user-1", "")
    assert not AuditLine.objects.filter(action="refuse.login").exists()
    assert succeeds()


def test_a_page_of_the_admin_leads_a_user_without_access_to_the_account(client: Client) -> None:
    note = "user-2 has no access to the admin."
    client.force_login(User.objects.get(username="user-2"))
    page = client.get("/admin/controlplane/job/", follow=True)
    assert page.redirect_chain[-1][0] == "/account/"
    assert note in page.content.decode()
    page = client.get("/", follow=True)
    assert page.redirect_chain[-1][0] == "/account/"
    assert note not in page.content.decode()


def test_the_login_leads_a_user_with_a_session_to_the_first_page(client: Client) -> None:
    client.force_login(User.objects.get(username="user-1"))
    assert client.get("/admin/login/")["Location"] == "/admin/"
    client.force_login(User.objects.get(username="user-2"))
    assert client.get("/admin/login/")["Location"] == "/account/"


def test_a_session_ends_after_12_hours() -> None:
    assert log_in("user-1", PASSWORD).cookies["sessionid"]["max-age"] == 12 * 3600


@pytest.mark.parametrize(
    "password",
    ["elevenchars", "qwertyuiop123", "8273645120394", "user-1-user-1"],
    ids=["short", "common", "digits", "similar"],
)
def test_a_weak_password_is_refused(password: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError):
        validate_password(password, User(username="user-1-user-1"))
    monkeypatch.setenv("CELLRUN_ADMIN_USER", "user-1-user-1")
    monkeypatch.setenv("CELLRUN_ADMIN_PASSWORD", password)
    with pytest.raises(CommandError, match=r"CELLRUN_ADMIN_PASSWORD: .*password"):
        call_command("bootstrap")
    assert not User.objects.filter(username="user-1-user-1").exists()


def test_a_password_that_an_installation_has_already_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    User.objects.create_superuser("user-3", password="old")
    monkeypatch.setenv("CELLRUN_ADMIN_USER", "user-3")
    monkeypatch.setenv("CELLRUN_ADMIN_PASSWORD", "old")
    call_command("bootstrap", quiet=True)
    assert User.objects.get(username="user-3").check_password("old")


def events(caplog: pytest.LogCaptureFixture, name: str) -> list[dict[str, Any]]:
    """The logged events of this name."""
    return [
        record.msg
        for record in caplog.records
        if isinstance(record.msg, dict) and record.msg["event"] == name
    ]
