"""Pages of notifications: the rules of the API at each field, sealed URLs, tests and what waits."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from controlplane import clock
from controlplane.models import (
    AuditLine,
    NotificationAddress,
    NotificationEvent,
    NotificationMessage,
    NotificationRule,
)
from controlplane.queries.notifications import describe_rule, get_rule, open_url
from tests.integration.admin.rows import NOW
from tests.integration.admin.test_pages import address_of, page, words

pytestmark = pytest.mark.django_db

SECRET = "t0ps3cret"
RULE = {
    "about": "jobs",
    "projects": "default/lab\ndefault/night",
    "states": ["FAILED", "KILLED"],
    "name_pattern": "nightly-*",
    "group_wait_seconds": "10",
    "group_interval_seconds": "600",
    "time_zone": "Europe/Berlin",
    "begin": "22:00",
    "end": "07:00",
    "weekdays": ["0", "4"],
    "enabled": "on",
}


@pytest.fixture(autouse=True)
def fixed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now", lambda: NOW)


def form_of(row: NotificationAddress | NotificationRule) -> str:
    return address_of(type(row), row).replace("/change/", "/edit/")


def rule_body(**changes: Any) -> dict[str, Any]:
    return {**RULE, "address": str(NotificationAddress.objects.get(name="ops").pk), **changes}


def actions_since(audit_id: int) -> list[tuple[str, str, str]]:
    lines = AuditLine.objects.filter(pk__gt=audit_id, action__contains="notification")
    return list(lines.order_by("pk").values_list("actor", "action", "subject"))


def last_line() -> int:
    return AuditLine.objects.latest("pk").pk


def test_an_operator_adds_changes_and_deletes_an_address(operator: Client) -> None:
    since = last_line()
    url = f"json://ops:{SECRET}@hook.example.org/in"
    answer = operator.post(f"{address_of(NotificationAddress)}add/", {"name": "chat", "url": url})
    added = NotificationAddress.objects.get(name="chat")
    assert answer["Location"] == address_of(NotificationAddress, added)
    assert open_url("chat", bytes(added.sealed)) == url
    operator.post(form_of(added), {"url": "jsons://two.example.org"})
    changed = NotificationAddress.objects.get(name="chat")
    assert open_url("chat", bytes(changed.sealed)) == "jsons://two.example.org"
    operator.post(address_of(NotificationAddress, added).replace("change", "delete"), {"post": "y"})
    assert not NotificationAddress.objects.filter(name="chat").exists()
    assert actions_since(since) == [
        ("olga", f"{verb}.notification_address", "notification address chat")
        for verb in ("create", "change", "delete")
    ]


def test_no_page_shows_a_url(operator: Client) -> None:
    address, rule = NotificationAddress.objects.get(), NotificationRule.objects.get()
    message = NotificationMessage.objects.get()
    for shown in (
        *map(address_of, (NotificationAddress, NotificationRule, NotificationMessage)),
        address_of(NotificationAddress, address),
        address_of(NotificationRule, rule),
        address_of(NotificationMessage, message),
        form_of(address),
        form_of(rule),
    ):
        html = page(operator, shown)
        assert SECRET not in html
        assert "example.org/" not in html
    assert "json://…" in page(operator, address_of(NotificationAddress, address))


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("", "at least 1"),
        (f"file:///tmp/{SECRET}", "the scheme of the URL is not permitted"),
        (f"json://ops:{SECRET}@10.0.0.1/", "CELLRUN_CALLBACK_ALLOWED_NETWORKS"),
        (f"slack://{SECRET}", "Apprise does not accept it"),
    ],
)
def test_a_url_that_the_api_refuses_is_refused_at_its_field(
    operator: Client, url: str, why: str
) -> None:
    answer = operator.post(f"{address_of(NotificationAddress)}add/", {"name": "chat", "url": url})
    assert answer.status_code == 200
    [error] = answer.context["adminform"].form.errors["url"]
    assert why in error
    assert SECRET not in answer.content.decode()
    assert not NotificationAddress.objects.filter(name="chat").exists()


def test_an_operator_adds_changes_and_deletes_a_rule(operator: Client) -> None:
    since = last_line()
    operator.post(f"{address_of(NotificationRule)}add/", rule_body(name="lab"))
    assert describe_rule(get_rule("lab")) == {
        "name": "lab",
        "address": "ops",
        "enabled": True,
        "about": "jobs",
        "kinds": [],
        "only_critical": False,
        "projects": ["default/lab", "default/night"],
        "states": ["FAILED", "KILLED"],
        "name_pattern": "nightly-*",
        "label": "",
        "group_wait_seconds": 10,
        "group_interval_seconds": 600,
        "quiet_hours": {
            "time_zone": "Europe/Berlin",
            "begin": "22:00",
            "end": "07:00",
            "weekdays": [0, 4],
        },
        "critical_passes": False,
    }
    rule = NotificationRule.objects.get(name="lab")
    form = operator.get(form_of(rule)).context["adminform"].form
    assert form["states"].initial == ["FAILED", "KILLED"]
    assert (form["begin"].initial, form["weekdays"].initial) == ("22:00", [0, 4])
    quiet = {"time_zone": "", "begin": "", "end": "", "weekdays": []}
    operator.post(form_of(rule), rule_body(**quiet, label="x"))
    changed = describe_rule(get_rule("lab"))
    assert (changed["quiet_hours"], changed["label"]) == (None, "x")
    operator.post(address_of(NotificationRule, rule).replace("change", "delete"), {"post": "yes"})
    assert not NotificationRule.objects.filter(name="lab").exists()
    assert actions_since(since) == [
        ("olga", f"{verb}.notification_rule", "notification rule lab")
        for verb in ("create", "change", "delete")
    ]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "Lab!"),
        ("projects", "no-slash"),
        ("name_pattern", "x" * 101),
        ("group_wait_seconds", "-1"),
        ("group_interval_seconds", "9"),
        ("time_zone", "Europe/Nowhere"),
        ("begin", "25:00"),
        ("end", ""),
        ("begin", "07:00"),  # equals the end
        ("states", ["NONSENSE"]),
        ("address", "999999"),
    ],
)
def test_a_value_that_the_api_refuses_is_refused_at_its_field(
    operator: Client, field: str, value: Any
) -> None:
    body = rule_body(name="lab") | {field: value}
    answer = operator.post(f"{address_of(NotificationRule)}add/", body)
    assert answer.status_code == 200
    assert list(answer.context["adminform"].form.errors) == [field]
    assert not NotificationRule.objects.filter(name="lab").exists()


def test_the_list_of_rules_shows_the_latest_message_and_what_waits(operator: Client) -> None:
    NotificationEvent.objects.update(at=NOW - timedelta(minutes=10))
    shown = words(page(operator, address_of(NotificationRule)))
    assert "waiting the service did not accept the message (500)" in shown
    assert "after the present one" in shown
    NotificationMessage.objects.update(state="delivered", ended_at=NOW, last_error="")
    quiet = {"quiet_zone": "UTC", "quiet_begin": "11:00", "quiet_end": "13:00"}
    NotificationRule.objects.update(**quiet, uncounted=5, critical_passes=False)
    html = page(operator, address_of(NotificationRule))
    shown = words(html)
    assert "delivered" in shown
    assert "quiet until 2026-11-20 13:00:00" in shown
    assert "6 since 2026-11-20 11:50:00" in shown  # one is stored, five are counted
    assert "2026-11-20 13:00:00" in shown.partition("6 since")[2]
    rule = NotificationRule.objects.get()
    detail = words(page(operator, address_of(NotificationRule, rule)))
    assert "11:00 to 13:00 UTC, every day" in detail
    assert "raised: mass_loss gpu: 3 of 4" in detail


def test_a_test_is_sent_from_the_page_of_an_address_and_of_a_rule(operator: Client) -> None:
    since = last_line()
    for row in (NotificationAddress.objects.get(), NotificationRule.objects.get()):
        assert "Send a test …" in page(operator, address_of(type(row), row))
        chosen = {"action": "send_tests", "_selected_action": [str(row.pk)]}
        operator.post(address_of(type(row)), chosen | {"confirmed": "yes"})
    assert NotificationMessage.objects.filter(is_test=True, address__name="ops").count() == 2
    expected = ("olga", "test.notification_address", "notification address ops")
    assert actions_since(since) == [expected] * 2


def test_users_that_may_only_read_see_no_forms(onlooker: Client) -> None:
    for row in (NotificationAddress.objects.get(), NotificationRule.objects.get()):
        html = page(onlooker, address_of(type(row), row))
        assert "Latest messages" in html
        assert "Send a test" not in html
        assert "/edit/" not in html
        assert onlooker.get(form_of(row)).status_code == 403


def test_too_many_rules_are_refused_with_a_message(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.commands.notifications.configure.MAX_RULES", 1)
    answer = operator.post(f"{address_of(NotificationRule)}add/", rule_body(name="b"), follow=True)
    assert "there are 1 notification rules, the most" in answer.content.decode()
    assert NotificationRule.objects.count() == 1
