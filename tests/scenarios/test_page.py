"""The page of scenarios leaves none out, and the order of a job's rules on paper is the code's."""

import pytest

from docgen.rollup_rules import RULES
from docgen.scenarios_page import ROWS, SCENARIOS, list_scenarios

# What each of the systems that Cellrun follows obliges to: Iris, Flyte, Diego, Backend.AI, Volcano.
COUNTS = {"S0": 11, "S1": 7, "S2": 5, "S3": 7, "S4": 4}
PROMISED = [
    f"{system}.{number}" for system, count in COUNTS.items() for number in range(1, count + 1)
]


@pytest.mark.parametrize("name", PROMISED)
def test_each_requirement_has_at_least_four_scenarios(name: str) -> None:
    found = [row for row in ROWS if row.name == name]
    assert found
    assert all(len(list_scenarios(row)) >= 4 for row in found)


def test_page_lists_the_requirements_in_order() -> None:
    named = [row.name for row in ROWS if row.name in PROMISED]
    assert list(dict.fromkeys(named)) == PROMISED


def test_every_file_of_scenarios_belongs_to_a_row() -> None:
    files = {path.name for path in SCENARIOS.glob("test_*.py")} - {"test_page.py"}
    assert {row.file for row in ROWS} == files
    assert all(list_scenarios(row) for row in ROWS)


def test_job_state_rules_match_the_documented_order() -> None:
    assert [rule.state.name for rule in RULES] == [
        "SUCCEEDED",
        "FAILED",
        "UNSCHEDULABLE",
        "KILLED",
        "SUCCEEDED",
        "WORKER_FAILED",
        "SUCCEEDED",
        "FAILED",
        "RUNNING",
        "PENDING",
    ]
