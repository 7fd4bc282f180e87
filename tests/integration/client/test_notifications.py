"""`cellrun notifications` against the API, with messages to a web server."""

import json
import threading
from collections.abc import Callable

import pytest
from django.db import connections
from typer.testing import CliRunner

from cellrun import Session
from controlplane.domain.roles import Role
from controlplane.models import NotificationAddress, NotificationMessage, NotificationRule
from tests.integration.callbacks.receiver import Receiver
from tests.integration.client.test_against_the_api import call, token_of
from tests.integration.client.test_against_the_api import command as command
from tests.integration.client.test_against_the_api import served as served
from tests.integration.client.test_against_the_api import session as session
from tests.integration.notifications.conftest import _allowed as _allowed
from tests.integration.notifications.conftest import receiver as receiver
from tests.integration.notifications.conftest import tick as tick

pytestmark = pytest.mark.django_db(transaction=True)

SECRET = "t0ps3cret"


def add(command: CliRunner, url: str, name: str = "ops") -> None:
    done = call(command, "notifications", "address", "set", name, typed=url)
    assert done.exit_code == 0, done.stderr
    assert SECRET not in done.output


def web(receiver: Receiver, path: str = "200") -> str:
    return receiver.url(path).replace("http://", f"json://ops:{SECRET}@")


@pytest.mark.parametrize(
    ("path", "state", "code"), [("200", "delivered", 0), ("403", "abandoned", 1)]
)
def test_test_of_an_address_reports_whether_the_message_arrived(
    command: CliRunner,
    receiver: Receiver,
    tick: Callable[[], None],
    path: str,
    state: str,
    code: int,
) -> None:
    add(command, web(receiver, path))
    is_over = threading.Event()

    def send() -> None:
        try:
            while not is_over.wait(0.05):
                if NotificationMessage.objects.filter(ended_at=None).exists():
                    tick()
        finally:
            connections.close_all()

    sender = threading.Thread(target=send)
    sender.start()
    try:
        done = call(command, "notifications", "address", "test", "ops")
    finally:
        is_over.set()
        sender.join(60)
    assert done.exit_code == code, done.output
    listed = call(command, "notifications", "messages", "ops").stdout
    assert NotificationMessage.objects.get().state in listed
    assert state in done.stdout
    assert SECRET not in done.output + listed


def test_url_is_never_shown(command: CliRunner) -> None:
    add(command, "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ")
    for words in (("list",), ("list", "-o", "json"), ("address", "show", "ops")):
        shown = call(command, "notifications", *words).stdout
        assert "slack://…" in shown
        assert "TIiajkdnlazkcOXrIdevi7FQ" not in shown


def test_refused_url_is_not_repeated(command: CliRunner) -> None:
    done = call(command, "notifications", "address", "set", "ops", typed=f"file:///{SECRET}")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "url" in done.stderr
    assert SECRET not in done.stderr
    assert not NotificationAddress.objects.exists()


def test_rule_is_created_changed_and_deleted(command: CliRunner) -> None:
    add(command, "json://example.org")
    rule = ("notifications", "rule", "set", "night")
    quiet = ("--quiet-hours", "22:00-07:00", "--quiet-zone", "Europe/Berlin")
    made = call(command, *rule, "--address", "ops", "--about", "jobs", "--project", "lab", *quiet)
    assert made.exit_code == 0, made.stderr
    found = NotificationRule.objects.get()
    assert (found.projects, found.quiet_zone) == (["default/lab"], "Europe/Berlin")
    assert call(command, *rule, "--state", "failed", "--disable").exit_code == 0
    found.refresh_from_db()
    assert (found.projects, found.is_enabled) == (["default/lab"], False)
    shown = json.loads(call(command, "notifications", "rule", "show", "night", "-o", "json").stdout)
    assert (shown["states"], shown["quiet_hours"]["begin"]) == (["FAILED"], "22:00")
    assert call(command, *rule, "--quiet-hours", "none", "--project", "").exit_code == 0
    found.refresh_from_db()
    assert (found.projects, found.quiet_zone) == ([], "")
    assert call(command, "notifications", "rule", "delete", "night", "--yes").exit_code == 0
    assert not NotificationRule.objects.exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--address", "nowhere"), "nowhere"),
        (("--kind", "nothing"), "nothing is not a kind of alerts"),
        (("--quiet-hours", "25:00-07:00", "--quiet-zone", "UTC"), "quiet_hours.begin"),
        (("--quiet-hours", "22:00-07:00", "--quiet-zone", "Mars"), "is not a time zone"),
        (("--group-wait", "-1"), "group_wait_seconds"),
    ],
)
def test_refused_rule_names_the_field(
    command: CliRunner, words: tuple[str, ...], expected: str
) -> None:
    add(command, "json://example.org")
    base = ("--address", "ops", "--about", "alerts")
    done = call(command, "notifications", "rule", "set", "night", *base, *words)
    assert (done.exit_code, expected in done.stderr) == (2, True), done.stderr
    assert not NotificationRule.objects.exists()


def test_only_operators_read_notifications(
    command: CliRunner, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELLRUN_TOKEN", token_of("sam", Role.SUBMITTER))
    for words in (("list",), ("messages", "ops"), ("rule", "show", "night")):
        done = call(command, "notifications", *words)
        assert (done.exit_code, "[403]" in done.stderr) == (2, True)
