"""docs/troubleshooting.md has an entry for every pending reason and every alert, and no other."""

import re

from controlplane.domain.alerts import ALERTS
from docgen.placement_page import EXAMPLES
from tests.harness.troubleshooting import PAGE, entries


def test_every_reason_and_every_alert_has_an_entry() -> None:
    headings = re.findall(r"^### (.*)$", PAGE.read_text(), re.MULTILINE)
    expected = [f"Reason `{code}`" for code in EXAMPLES] + [f"Alert `{kind}`" for kind in ALERTS]
    assert headings == expected
    assert [*entries("Reason")] == [*EXAMPLES]
    assert [*entries("Alert")] == [*ALERTS]


def test_every_entry_has_a_symptom() -> None:
    found = {**entries("Reason"), **{f"alert {kind}": it for kind, it in entries("Alert").items()}}
    assert [name for name, entry in found.items() if not entry.symptoms] == []


def test_entries_of_alerts_have_the_meanings_and_actions_of_the_admin() -> None:
    for kind, entry in entries("Alert").items():
        assert entry.meaning == sentence(ALERTS[kind].meaning)
        assert entry.action.startswith(sentence(ALERTS[kind].action)), kind


def sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "." * (not text.endswith("."))
