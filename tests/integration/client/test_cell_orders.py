"""Orders about cells with reasons: the command against the API."""

import pytest
from typer.testing import CliRunner

from cellrun import Session
from controlplane import clock
from controlplane.commands.cells.operate import enroll_cell
from controlplane.models import AuditLine, Cell
from tests.integration.client.test_against_the_api import call
from tests.integration.client.test_against_the_api import command as command
from tests.integration.client.test_against_the_api import served as served
from tests.integration.client.test_against_the_api import session as session

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def cell(session: Session) -> str:
    enroll_cell(name="cell-1", now=clock.now())
    Cell.objects.update(state="READY", ordered_state="READY")
    return "cell-1"


@pytest.mark.parametrize(
    ("order", "before", "state", "text"),
    [
        ("cordon", "READY", "cordoned", "cordoned by olga: new kernel"),
        ("drain", "READY", "draining", "drained by olga: new kernel"),
        ("uncordon", "CORDONED", "ready", "uncordoned by olga: new kernel"),
        ("unquarantine", "QUARANTINED", "ready", "taken out of quarantine by olga: new kernel"),
    ],
)
def test_reason_is_shown_with_the_cell_and_audited(
    command: CliRunner, cell: str, order: str, before: str, state: str, text: str
) -> None:
    ordered = "READY" if before == "QUARANTINED" else before
    Cell.objects.update(state=before, ordered_state=ordered)
    done = call(command, order, cell, "--reason", "new kernel")
    assert (done.exit_code, done.stdout) == (0, f"cell cell-1 is {state}\n"), done.stderr
    page = call(command, "cells", cell).stdout
    assert text in page
    assert page.splitlines()[0].split()[:2] == ["cell-1", state]
    line = AuditLine.objects.get(action=f"{order}.cell")
    assert (line.subject, line.text) == ("cell cell-1", "new kernel")


def test_reason_is_optional_and_limited(command: CliRunner, cell: str) -> None:
    refused = call(command, "cordon", cell, "--reason", "x" * 10_000)
    assert refused.exit_code == 2
    assert "reason" in refused.stderr
    assert Cell.objects.get().state == "READY"
    assert call(command, "cordon", cell).exit_code == 0
    assert Cell.objects.get().state_reason == "cordoned by olga"


def test_page_shows_the_progress_of_a_drain(command: CliRunner, cell: str) -> None:
    call(command, "drain", cell, "--deadline", "60", "--reason", "new kernel")
    page = call(command, "cells", cell).stdout
    assert "no attempts left since" in page
    assert "drain deadline" in page


@pytest.mark.parametrize("words", [("cells",), ("cordon",), ("uncordon",), ("unquarantine",)])
def test_unknown_cell_is_reported(
    command: CliRunner, session: Session, words: tuple[str, ...]
) -> None:
    done = call(command, *words, "cell-9")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "there is no cell" in done.stderr
