"""The commands about cells: one cell, and orders with reasons."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from client.cli import app
from tests.unit.client.documents import AT, a_cell
from tests.unit.client.stub_server import Api

CELL = "GET /api/v1/cells/cell-1"


def call(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


@pytest.mark.parametrize(
    ("order", "state"),
    [
        ("cordon", "CORDONED"),
        ("uncordon", "READY"),
        ("unquarantine", "READY"),
        ("drain", "DRAINING"),
    ],
)
def test_order_sends_its_reason_and_shows_the_state(
    environment: Api, order: str, state: str
) -> None:
    environment.answer(f"POST /api/v1/cells/cell-1/{order}", a_cell(state=state))
    result = call(order, "cell-1", "--reason", "new kernel")
    assert (result.exit_code, result.stdout) == (0, f"cell cell-1 is {state.lower()}\n")
    assert environment.requests[-1][3]["reason"] == "new kernel"
    assert json.loads(call(order, "cell-1", "--json").stdout)["state"] == state
    assert environment.requests[-1][3]["reason"] == ""


def test_order_about_a_lost_cell_takes_effect_at_its_return(environment: Api) -> None:
    environment.answer("POST /api/v1/cells/cell-1/cordon", a_cell(state="LOST"))
    expected = "cell cell-1 is lost; the order takes effect when it returns\n"
    assert call("cordon", "cell-1").stdout == expected


def facts_of(page: str) -> dict[str, str]:
    """The fields of a cell's page with their values."""
    lines = page.split("\n\n")[1].splitlines()
    width = lines[0].index("VALUE")
    return {line[:width].strip(): line[width:].strip() for line in lines[1:]}


def test_page_of_a_cell_shows_the_reason_of_its_state(environment: Api) -> None:
    environment.answer(CELL, a_cell(state="CORDONED", state_reason="cordoned by olga: new kernel"))
    page = call("cells", "cell-1").stdout
    assert page.splitlines()[0].split() == ["cell-1", "cordoned"]
    assert facts_of(page)["reason"] == "cordoned by olga: new kernel"
    assert json.loads(call("cells", "cell-1", "--json").stdout)["name"] == "cell-1"


@pytest.mark.parametrize(
    ("drain", "expected"),
    [
        ({"left": 3, "total": 12, "longest_until": AT}, "3 of 12 attempts left, the longest until"),
        ({"left": 1, "total": 2, "longest_until": None}, "1 of 2 attempts left, without a limit"),
        ({"left": 0, "total": 2, "longest_until": None}, "0 of 2 attempts left"),
    ],
)
def test_page_of_a_cell_shows_the_progress_of_a_drain(
    environment: Api, drain: dict[str, Any], expected: str
) -> None:
    environment.answer(CELL, a_cell(state="DRAINING", drain=drain, drain_deadline_at=AT))
    facts = facts_of(call("cells", "cell-1").stdout)
    assert facts["drain"].startswith(expected)
    assert facts["drain deadline"]


def test_page_of_a_cell_shows_free_and_maximum_resources(environment: Api) -> None:
    environment.answer(CELL, a_cell(max_capacity={"cpu": 4}, silent=True))
    page = call("cells", "cell-1").stdout
    assert page.splitlines()[0].endswith("ready (silent)")
    assert [line.split() for line in page.split("\n\n")[2].splitlines()] == [
        ["RESOURCE", "FREE", "CAPACITY", "MAXIMUM"],
        ["cpu", "0.5", "2", "4"],
        ["memory", "1024", "MiB", "2048", "MiB"],
    ]
