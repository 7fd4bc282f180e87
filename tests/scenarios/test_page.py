"""The page of scenarios leaves none out, and the order of a job's rules on paper is the code's."""

from docs.rollup_rules import RULES
from docs.scenarios_page import ROWS, SCENARIOS, list_scenarios


def test_every_file_of_scenarios_belongs_to_a_row() -> None:
    files = {path.name for path in SCENARIOS.glob("test_*.py")} - {"test_page.py"}
    assert {row.file for row in ROWS} == files
    assert all(list_scenarios(row) for row in ROWS)


def test_each_rule_of_a_jobs_state_comes_to_what_the_page_says() -> None:
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
