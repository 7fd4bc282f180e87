"""`cellrun alerts`: list, show with meaning and remedy, close."""

import json

import pytest
from typer.testing import CliRunner

from controlplane import clock
from controlplane.domain.roles import Role
from controlplane.models import Alert, AuditLine
from tests.integration.client.test_against_the_api import call, token_of
from tests.integration.client.test_against_the_api import command as command
from tests.integration.client.test_against_the_api import served as served
from tests.integration.client.test_against_the_api import session as session

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def operator(command: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLRUN_OPERATOR_TOKEN", token_of("otto", Role.OPERATOR))


def raise_alert(kind: str, subject: str, *, closed: bool = False) -> int:
    now = clock.now()
    return Alert.objects.create(
        kind=kind,
        subject=subject,
        text="no report for 40 s",
        raised_at=now,
        last_raised_at=now,
        cleared_at=now if closed else None,
    ).pk


def test_open_alerts_are_listed_and_closed_ones_on_request(command: CliRunner) -> None:
    assert call(command, "alerts").stdout == "no open alerts\n"
    raise_alert("cell_lost", "cell-1")
    raise_alert("cell_lost", "cell-2", closed=True)
    raise_alert("tick_late", "placement")
    listed = call(command, "alerts").stdout
    assert ("cell-1" in listed, "cell-2" in listed, "placement" in listed) == (True, False, True)
    assert "cell-2" in call(command, "alerts", "--all").stdout
    found = call(command, "alerts", "--kind", "tick_late", "-o", "jsonpath=[*].subject")
    assert found.stdout == "placement\n"


def test_an_alert_has_its_meaning_and_what_to_do(command: CliRunner) -> None:
    shown = call(command, "alerts", str(raise_alert("cell_lost", "cell-1"))).stdout
    for part in (
        "open",
        "cell-1",
        "no report for 40 s",
        "silent beyond its lease",
        "check the",
    ):
        assert part in shown
    unknown = call(command, "alerts", "999")
    assert (unknown.exit_code, "no alert 999" in unknown.stderr) == (2, True)


def test_an_alert_of_another_release_has_no_meaning(command: CliRunner) -> None:
    number = str(raise_alert("of_the_future", "x"))
    assert "meaning" not in call(command, "alerts", number).stdout
    assert json.loads(call(command, "alerts", number, "-o", "json").stdout)["remedy"] == ""


def test_closing_leaves_an_audit_line(command: CliRunner) -> None:
    number = raise_alert("cell_lost", "cell-1")
    assert call(command, "alerts", "--close").exit_code == 2
    done = call(command, "alerts", str(number), "--close", "--reason", "gone for good")
    assert done.stdout == f"alert {number} is closed\n"
    assert call(command, "alerts").stdout == "no open alerts\n"
    line = AuditLine.objects.get(action="close.alert")
    assert (line.actor, "gone for good" in line.text) == ("otto", True)


def test_submitters_get_no_alerts(command: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELLRUN_OPERATOR_TOKEN", token_of("sue", Role.SUBMITTER))
    refused = call(command, "alerts")
    assert (refused.exit_code, "auditors" in refused.stderr) == (2, True)
