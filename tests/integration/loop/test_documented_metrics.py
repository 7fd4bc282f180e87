"""docs/metrics.md lists exactly the metrics that web serves, with their types and labels."""

import re
import subprocess

import pytest
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import TaskState as S
from tests.architecture.source import ROOT
from tests.integration.loop.conftest import Loop
from tests.integration.loop.test_samples import age_cursor

PAGE = (ROOT / "docs" / "metrics.md").read_text()
ROW = re.compile(r"^\| `(cellrun_\w+)` \| (\w+) \| ([^|]*) \| (.+) \|$", re.MULTILINE)
LABEL = re.compile(r"^\| `([a-z]+)` \| (.+) \|$", re.MULTILINE)


def documented() -> dict[str, tuple[str, frozenset[str]]]:
    return {
        name: (kind, frozenset(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels, _ in ROW.findall(PAGE)
    }


@pytest.fixture
def exposition(loop: Loop) -> str:
    """What web serves after work of each kind: a task that ended and one that waits."""
    cell = loop.cell(cpu=1000)
    loop.converge()
    job = loop.submit()
    loop.submit(name="waiting")
    loop.place()
    [attempt] = loop.attempts(job)
    cell.report(AttemptReport(str(attempt.uid), 0, S.RUNNING))
    cell.end(attempt, S.SUCCEEDED, exit_code=0)
    for _ in range(2):  # the second sample counts the changes before the first
        age_cursor(15)
        loop.converge()
    page = Client().get("/metrics")
    assert page.status_code == 200
    return page.content.decode()


def test_exactly_the_documented_metrics_are_served(exposition: str) -> None:
    served = {
        family.name: (
            family.type,
            frozenset(name for sample in family.samples for name in sample.labels),
        )
        for family in text_string_to_metric_families(exposition)
    }
    assert served == documented()
    assert len(served) > 25


def test_promtool_accepts_names_and_units(exposition: str) -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=exposition,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_each_label_and_its_values_are_documented() -> None:
    used = {label for _, labels in documented().values() for label in labels}
    assert used == {name for name, _ in LABEL.findall(PAGE)}


def test_meaning_of_the_page_is_the_help_text(exposition: str) -> None:
    meanings = {name: text for name, _, _, text in ROW.findall(PAGE)}
    for family in text_string_to_metric_families(exposition):
        assert meanings[family.name].startswith(family.documentation)
