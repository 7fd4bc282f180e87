"""The commands about cells: one cell, and orders with reasons."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cellrun.cli import app
from tests.unit.client.documents import AT, a_cell
from tests.unit.client.stub_server import Api


def a_drain(left: int, total: int, **changes: Any) -> dict[str, Any]:
    """The progress of a drain."""
    return {"left": left, "total": total, "longest_until": None, "empty_since": None} | changes


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
    assert json.loads(call(order, "cell-1", "-o", "json").stdout)["state"] == state
    assert environment.requests[-1][3]["reason"] == ""


def test_order_about_a_lost_cell_takes_effect_at_its_return(environment: Api) -> None:
    environment.answer("POST /api/v1/cells/cell-1/cordon", a_cell(state="LOST"))
    expected = "cell cell-1 is lost; the order takes effect when it returns\n"
    assert call("cordon", "cell-1").stdout == expected


def test_order_without_the_role_names_the_token_that_it_needs(environment: Api) -> None:
    detail = (
        "the request needs a token with the role operator; this token of ann has the role viewer"
    )
    problem = {"title": "Permission denied", "detail": detail}
    environment.answer("POST /api/v1/cells/cell-1/drain", problem, status=403)
    result = call("drain", "cell-1")
    assert result.exit_code == 2
    shown = " ".join(result.stderr.split())
    assert detail in shown
    assert "set CELLRUN_TOKEN to the token of an operator, or run `cellrun login URL`" in shown


def facts_of(page: str) -> dict[str, str]:
    """The fields of a cell's page with their values."""
    lines = page.split("\n\n")[1].splitlines()
    found = [line.partition(":  ") for line in lines]
    return {name: value.strip() for name, _, value in found}


def test_page_of_a_cell_shows_the_reason_of_its_state(environment: Api) -> None:
    environment.answer(CELL, a_cell(state="CORDONED", state_reason="cordoned by olga: new kernel"))
    page = call("cells", "cell-1").stdout
    assert page.splitlines()[0].split() == ["cell-1", "cordoned"]
    assert facts_of(page)["reason"] == "cordoned by olga: new kernel"
    assert json.loads(call("cells", "cell-1", "-o", "json").stdout)["name"] == "cell-1"


@pytest.mark.parametrize(
    ("drain", "expected"),
    [
        (a_drain(3, 12, longest_until=AT), "3 of 12 attempts left, the longest until"),
        (a_drain(1, 2), "1 of 2 attempts left, without a limit"),
        (a_drain(0, 2, empty_since=AT), "no attempts left since 20"),
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


def test_list_shows_what_is_left_of_a_drain_and_since_when_a_cell_is_empty(
    environment: Api,
) -> None:
    order = {"state": "DRAINING", "state_reason": "drained by olga"}
    cells = [
        a_cell(name="a", drain=a_drain(5, 9), **order),
        a_cell(name="b", drain=a_drain(0, 9, empty_since=AT), **order),
    ]
    environment.answer("GET /api/v1/cells", {"results": cells, "next": None})
    shown = json.dumps(call("cells").stdout)
    assert "draining: 5 attempts left" in shown
    assert "drained: no attempts left since" in shown


def test_page_of_a_draining_cell_names_the_grace_period(environment: Api) -> None:
    drain = a_drain(3, 12, longest_until=AT)
    environment.answer(CELL, a_cell(state="DRAINING", drain=drain, drain_deadline_at=AT))
    assert facts_of(call("cells", "cell-1").stdout)["drain"].endswith("grace period included")


def test_drain_waits_until_the_cell_is_empty(environment: Api) -> None:
    order = "POST /api/v1/cells/cell-1/drain"
    environment.answer(order, a_cell(state="DRAINING", drain=a_drain(2, 2)))
    environment.answer(CELL, a_cell(state="DRAINING", drain=a_drain(1, 2)))
    environment.answer(CELL, a_cell(state="DRAINING", drain=a_drain(0, 2, empty_since=AT)))
    result = call("drain", "cell-1", "--wait")
    assert (result.exit_code, result.stdout) == (0, "cell cell-1 is drained: no attempts left\n")
    assert result.stderr.splitlines() == ["2 of 2 attempts left", "1 of 2 attempts left"]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (a_cell(state="DRAINING", drain=a_drain(1, 2)), "with 1 attempts left at the deadline"),
        (a_cell(state="READY", drain=None), "cell cell-1 is ready and does not drain"),
    ],
    ids=["timeout", "uncordoned"],
)
def test_wait_for_a_drain_fails_at_the_timeout_or_the_end_of_the_drain(
    environment: Api, found: Any, expected: str
) -> None:
    environment.answer(
        "POST /api/v1/cells/cell-1/drain", a_cell(state="DRAINING", drain=a_drain(1, 2))
    )
    environment.answer(CELL, found)
    result = call("drain", "cell-1", "--wait", "--timeout", "0.3")
    assert result.exit_code == 2
    assert expected in " ".join(result.stderr.split())
