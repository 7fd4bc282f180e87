"""`cellrun notifications`: addresses whose URLs stay secret, rules, tests and messages."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cellrun.cli import app
from tests.unit.client.documents import AT, a_message, a_page, a_rule
from tests.unit.client.stub_server import Api

ADDRESS = "/api/v1/notification-addresses/ops"
RULE = "/api/v1/notification-rules/night"
URL = "mailtos://user:hunter2@example.org"
OPS = {
    "name": "ops",
    "url": "mailtos://…",
    "service": "E-Mail",
    "created_at": AT,
    "updated_at": AT,
}
QUIET = {"time_zone": "Europe/Berlin", "begin": "22:00", "end": "07:00", "weekdays": []}


def call(*words: str, typed: str | None = None) -> Result:
    return CliRunner().invoke(app, ["notifications", *words], input=typed)


def bodies(api: Api, name: str) -> list[Any]:
    return [request[3] for request in api.requests if request[0] == name]


def test_url_comes_from_a_pipe_or_a_file_and_is_not_printed(
    environment: Api, tmp_path: Path
) -> None:
    environment.answer(f"PUT {ADDRESS}", OPS, 201)
    result = call("address", "set", "ops", typed=f"{URL}\n")
    assert result.exit_code == 0
    assert "address ops sends to mailtos://… (E-Mail)" in result.stdout
    (tmp_path / "url").write_text(f"{URL}\n")
    result = call("address", "set", "ops", "--from-file", str(tmp_path / "url"), "-o", "json")
    assert json.loads(result.stdout) == OPS
    assert bodies(environment, f"PUT {ADDRESS}") == [{"url": URL}, {"url": URL}]
    assert "hunter2" not in result.output


def test_prompt_for_the_url_does_not_repeat_it(
    environment: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellrun.commands.notifications.addresses.is_terminal", lambda: True)
    environment.answer(f"PUT {ADDRESS}", OPS)
    result = call("address", "set", "ops", typed=f"{URL}\n")
    assert "URL:" in result.stderr
    assert "hunter2" not in result.output
    assert bodies(environment, f"PUT {ADDRESS}") == [{"url": URL}]


def test_url_is_no_argument_and_not_empty(environment: Api, tmp_path: Path) -> None:
    assert call("address", "set", "ops", URL).exit_code == 2
    assert "the URL is empty" in call("address", "set", "ops", typed="\n").stderr
    missing = call("address", "set", "ops", "--from-file", str(tmp_path / "none"))
    assert (missing.exit_code, "No such file" in missing.stderr) == (2, True)
    assert environment.requests == []


def test_addresses_and_rules_are_listed(environment: Api) -> None:
    environment.answer("GET /api/v1/notification-addresses", a_page(OPS))
    rule = a_rule(about="jobs", projects=["default/lab"], states=["FAILED"], quiet_hours=QUIET)
    environment.answer("GET /api/v1/notification-rules", a_page(rule))
    first, second = call("list").stdout.split("\n\n")
    assert first.splitlines()[1].split()[:3] == ["ops", "mailtos://…", "E-Mail"]
    line = second.splitlines()[1]
    for part in ("night", "ops", "yes", "jobs of default/lab, failed", "22:00-07:00 Europe/Berlin"):
        assert part in line
    found = json.loads(call("list", "-o", "json").stdout)
    assert (found["addresses"], found["rules"][0]["name"]) == ([OPS], "night")


@pytest.mark.parametrize(
    ("ended", "code", "text"),
    [
        ({"state": "delivered"}, 0, "message 31 is delivered to address ops"),
        (
            {"state": "abandoned", "last_error": "the service refused it (HTTP 403)"},
            1,
            "message 31 is abandoned: the service refused it (HTTP 403)",
        ),
    ],
)
def test_test_waits_for_the_result(
    environment: Api, ended: dict[str, Any], code: int, text: str
) -> None:
    environment.answer(f"POST {ADDRESS}/test", a_message(), 202)
    newer = a_message(id=32)
    environment.answer(f"GET {ADDRESS}/messages", a_page(newer, a_message()))
    environment.answer(f"GET {ADDRESS}/messages", a_page(newer, a_message(ended_at=AT, **ended)))
    result = call("address", "test", "ops")
    assert (result.exit_code, result.stdout) == (code, f"{text}\n")


def test_test_gives_up_at_its_deadline(environment: Api) -> None:
    environment.answer(f"POST {ADDRESS}/test", a_message(), 202)
    environment.answer(f"GET {ADDRESS}/messages", a_page(a_message()))
    result = call("address", "test", "ops", "--deadline", "0")
    assert result.exit_code == 2
    assert "gave up waiting for message 31" in result.stderr


def test_deletion_of_an_address_names_the_rules_that_end_with_it(environment: Api) -> None:
    environment.answer(f"GET {ADDRESS}", OPS)
    rules = a_page(a_rule(), a_rule(name="day", address="chat"))
    environment.answer("GET /api/v1/notification-rules", rules)
    environment.answer(f"DELETE {ADDRESS}", b"", 204)
    refused = call("address", "delete", "ops", typed="n\n")
    assert refused.exit_code == 1
    assert "Delete the address ops with the rules night and its messages?" in refused.stderr
    assert bodies(environment, f"DELETE {ADDRESS}") == []
    done = call("address", "delete", "ops", "--yes")
    assert done.stdout == "address ops is deleted with the rules night\n"


def test_new_rule_has_the_given_fields_only(environment: Api) -> None:
    environment.answer(f"PUT {RULE}", a_rule(), 201)
    words = ("--address", "ops", "--about", "jobs", "--project", "lab", "--project", "a/b")
    quiet = ("--quiet-hours", "22:00-07:00", "--quiet-zone", "Europe/Berlin", "--quiet-day", "sun")
    more = ("--state", "failed", "--name", "nightly-*", "--group-wait", "0", "--critical-waits")
    result = call("rule", "set", "night", *words, *quiet, *more)
    assert result.exit_code == 0, result.output
    assert bodies(environment, f"PUT {RULE}") == [
        {
            "address": "ops",
            "about": "jobs",
            "projects": ["default/lab", "a/b"],
            "states": ["FAILED"],
            "name_pattern": "nightly-*",
            "group_wait_seconds": 0,
            "critical_passes": False,
            "quiet_hours": {**QUIET, "weekdays": [6]},
        }
    ]


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        (("--disable",), {"enabled": False}),
        (("--kind", ""), {"kinds": []}),
        (("--kind", "mass_loss", "--only-critical"), {"only_critical": True}),
        (("--quiet-zone", "UTC"), {"quiet_hours": {**QUIET, "time_zone": "UTC"}}),
        (("--quiet-hours", "none"), {"quiet_hours": None}),
    ],
)
def test_omitted_options_keep_the_values_of_a_rule(
    environment: Api, words: tuple[str, ...], changes: dict[str, Any]
) -> None:
    present = a_rule(kinds=["mass_loss"], quiet_hours=QUIET)
    environment.answer(f"GET {RULE}", present)
    environment.answer(f"PUT {RULE}", present)
    assert call("rule", "set", "night", *words).exit_code == 0
    assert bodies(environment, f"PUT {RULE}") == [{**present, **changes}]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--address", "ops"), "there is no rule night: a new one needs --address and --about"),
        (("--quiet-hours", "10pm-7am"), "--quiet-hours 10pm-7am: must be like 22:00-07:00"),
        (("--quiet-hours", "22:00-07:00"), "quiet hours need both --quiet-hours and --quiet-zone"),
        (("--quiet-day", "monday"), "--quiet-day monday: must be one of mon, tue"),
        (("--quiet-hours", "none", "--quiet-zone", "UTC"), "not together with"),
    ],
)
def test_contradictory_rule_is_refused(
    environment: Api, words: tuple[str, ...], expected: str
) -> None:
    if words[0] != "--address":
        words = ("--address", "ops", "--about", "alerts", *words)
    result = call("rule", "set", "night", *words)
    assert result.exit_code == 2
    assert expected in result.stderr
    assert bodies(environment, f"PUT {RULE}") == []


def test_rule_is_shown_and_deleted_after_confirmation(environment: Api) -> None:
    environment.answer(f"GET {RULE}", a_rule(only_critical=True, quiet_hours=QUIET))
    environment.answer(f"DELETE {RULE}", b"", 204)
    page = call("rule", "show", "night").stdout
    for part in ("critical alerts", "22:00-07:00 Europe/Berlin", "at least 300 s apart"):
        assert part in page
    assert call("rule", "delete", "night", typed="").exit_code == 1
    assert bodies(environment, f"DELETE {RULE}") == []
    assert call("rule", "delete", "night", "-y").stdout == "rule night is deleted\n"


def test_messages_are_listed_with_tries_and_errors(environment: Api) -> None:
    failed = {"state": "waiting", "tries": 3, "last_error": "HTTP 502", "is_test": False}
    messages = a_page(a_message(id=2, rule="night", **failed), a_message(id=1))
    environment.answer(f"GET {ADDRESS}/messages", messages)
    first, second = call("messages", "ops", "--limit", "5").stdout.splitlines()[1:]
    for part in ("2", "waiting", "3", "night", "HTTP 502"):
        assert part in first
    assert "test" in second
    assert environment.requests[-1][1] == "limit=5"
