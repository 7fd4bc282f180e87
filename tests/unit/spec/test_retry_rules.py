"""`on_exit` of a group: the rules that are accepted, and the fault of each other one."""

from typing import Any

import pytest

from controlplane.spec import parse_job
from tests.unit.spec.test_parsing import faults_of, grouped, short

RETRY: dict[str, Any] = {"codes": [75], "do": "retry"}
FAIL: dict[str, Any] = {"codes": [2], "do": "fail"}


def of_rule(rule: object, **job: Any) -> dict[str, str]:
    return faults_of(short(retries={"failure": 1}, on_exit=[rule], **job))


def test_rules_are_read_in_both_forms() -> None:
    rules = [RETRY, FAIL, {"reason": "oom", "do": "retry"}]
    one = parse_job(short(on_exit=rules, retries={"failure": 3}))
    other = parse_job(grouped({"name": "main", "on_exit": rules}, retries={"failure": 3}))
    assert one.groups[0].on_exit == other.groups[0].on_exit
    found = [(rule.codes, rule.reason, rule.do) for rule in one.groups[0].on_exit]
    assert found == [([75], None, "retry"), ([2], None, "fail"), (None, "out_of_memory", "retry")]


@pytest.mark.parametrize(
    ("rule", "field", "detail"),
    [
        ({"do": "fail"}, "on_exit[0]", "must have codes, reason or both"),
        ({"codes": [], "do": "fail"}, "on_exit[0].codes", "must have at least 1 items"),
        ({"codes": [0], "do": "fail"}, "on_exit[0].codes[0]", "must be at least 1"),
        ({"codes": [256], "do": "fail"}, "on_exit[0].codes[0]", "must be at most 255"),
        ({"codes": [3, 4, 3], "do": "fail"}, "on_exit[0].codes", "has 3 twice"),
        ({"codes": ["3"], "do": "fail"}, "on_exit[0].codes[0]", "must be a whole number"),
        ({"codes": [3]}, "on_exit[0].do", "is required"),
        ({"codes": [3], "do": "stop"}, "on_exit[0].do", "must be 'retry' or 'fail'"),
        ({"code": [3], "do": "fail"}, "on_exit[0].code", "unknown field; did you mean codes?"),
        ({**FAIL, "resons": 1}, "on_exit[0].resons", "unknown field; did you mean reason?"),
    ],
)
def test_a_wrong_rule_is_refused_with_its_field(
    rule: dict[str, Any], field: str, detail: str
) -> None:
    assert of_rule(rule)[field] == detail


@pytest.mark.parametrize("reason", ["cell_lost", "preempted", "timeout", "cancelled", "", 3])
def test_only_reasons_of_failures_are_accepted(reason: object) -> None:
    [(field, detail)] = of_rule({"reason": reason, "do": "fail"}).items()
    assert field == "on_exit[0].reason"
    assert detail.startswith("must be 'exit_status', 'out_of_memory'")


def test_numbers_of_rules_and_codes_are_limited() -> None:
    assert parse_job(short(on_exit=[FAIL] * 16)).groups[0].on_exit
    text = "must have at most 16 items, not 17"
    assert faults_of(short(on_exit=[FAIL] * 17)) == {"on_exit": text}
    codes = list(range(1, 66))
    assert parse_job(short(on_exit=[{"codes": codes[:64], "do": "fail"}]))
    assert of_rule({"codes": codes, "do": "fail"}) == {
        "on_exit[0].codes": "must have at most 64 items, not 65"
    }


def test_a_rule_that_retries_needs_retries_of_failures() -> None:
    text = "retries within retries.failure, which is 0: set it to at least 1"
    assert faults_of(short(on_exit=[FAIL, RETRY])) == {"on_exit[1].do": text}
    body = grouped({"name": "a", "on_exit": [RETRY], "retries": {"failure": 0}})
    assert faults_of({**body, "retries": {"failure": 2}}) == {"groups[0].on_exit[0].do": text}
    assert parse_job(grouped({"name": "a", "on_exit": [RETRY]}, retries={"failure": 2}))


def test_a_task_that_runs_at_most_once_has_no_rule_that_retries() -> None:
    once = short(on_exit=[FAIL, RETRY], delivery="at_most_once")
    assert faults_of(once) == {"on_exit[1].do": "must be fail with delivery at_most_once"}
    assert parse_job(short(on_exit=[FAIL], delivery="at_most_once"))


def test_services_have_no_rules() -> None:
    check = {"command": ["true"]}
    body = short(kind="inference", health_check=check, on_exit=[FAIL])
    text = "is not supported for a job of kind inference, which is restarted"
    assert faults_of(body) == {"on_exit": text}


def test_a_field_of_a_rule_elsewhere_is_unknown() -> None:
    assert faults_of(short(codes=[3]))["codes"].startswith("unknown field")
