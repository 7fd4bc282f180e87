"""`resources` of a retry rule: factors, amounts and maxima that are accepted, and each fault."""

from typing import Any

import pytest

from controlplane.domain.jobs.submission import rule_of
from controlplane.domain.state.growth import ResourceGrowth
from controlplane.spec import parse_job
from tests.unit.spec.test_parsing import faults_of, short

OOM: dict[str, Any] = {"reason": "oom", "do": "retry"}
OWN: dict[str, Any] = {"cpu": 1, "memory": "1Gi", "disk": "100Mi"}


def ruled(increase: object, most: object = None, **more: Any) -> dict[str, Any]:
    """Return a job with one rule; `more`: fields of the rule and of the job."""
    rule = {**OOM, "resources": increase}
    rule |= {} if most is None else {"max_resources": most}
    rule |= {name: more.pop(name) for name in ("codes", "reason", "do") if name in more}
    return short(**{"retries": {"failure": 3}, "resources": OWN, **more, "on_exit": [rule]})


@pytest.mark.parametrize(
    ("resources", "most", "expected"),
    [
        ({"memory": "2x"}, None, [ResourceGrowth("memory_mib", percent=200)]),
        ({"memory": "1.5x"}, None, [ResourceGrowth("memory_mib", percent=150)]),
        ({"memory": "1.25x"}, None, [ResourceGrowth("memory_mib", percent=125)]),
        ({"memory": "4Gi"}, None, [ResourceGrowth("memory_mib", amount=4096)]),
        (
            {"cpu": "2x", "memory": "2x", "disk": "1Gi"},
            {"cpu": 4, "memory": "16Gi"},
            [
                ResourceGrowth("cpu_millis", percent=200, most=4000),
                ResourceGrowth("memory_mib", percent=200, most=16384),
                ResourceGrowth("disk_mib", amount=1024),
            ],
        ),
        ({"cpu": 2}, None, [ResourceGrowth("cpu_millis", amount=2000)]),
    ],
)
def test_factors_amounts_and_maxima_are_read(
    resources: object, most: object, expected: list[ResourceGrowth]
) -> None:
    [rule] = parse_job(ruled(resources, most)).groups[0].on_exit
    assert rule_of(rule).growth == tuple(expected)


def test_a_document_keeps_factors_as_written() -> None:
    [rule] = parse_job(ruled({"memory": "1.50x", "disk": "2048Mi"})).groups[0].on_exit
    shown = rule.model_dump(exclude_none=True)
    assert shown["resources"] == {"memory": "1.5x", "disk": "2Gi"}


AT = "on_exit[0].resources"


@pytest.mark.parametrize(
    ("resources", "field", "detail"),
    [
        ({}, AT, "must have cpu, memory or disk"),
        ({"memory": None}, AT, "must have cpu, memory or disk"),
        (5, AT, "must be a mapping of names to values"),
        (True, AT, "must be a mapping of names to values"),
        ("2x", AT, "must be a mapping of names to values"),
        ({"gpu": "2x"}, AT, "gpu cannot be increased: only cpu, memory and disk can"),
        ({"licence": 2}, AT, "licence cannot be increased: only cpu, memory and disk can"),
        ({"memory": "1x"}, f"{AT}.memory", "must be more than 1x and at most 16x"),
        ({"memory": "0.5x"}, f"{AT}.memory", "must be more than 1x and at most 16x"),
        ({"memory": "17x"}, f"{AT}.memory", "must be more than 1x and at most 16x"),
        ({"memory": "1.001x"}, f"{AT}.memory", 'must be a factor like "2x" or "1.5x"'),
        ({"memory": "ax"}, f"{AT}.memory", 'must be a factor like "2x" or "1.5x"'),
        (
            {"memory": "much"},
            f"{AT}.memory",
            'must be a factor like "2x", or a quantity like "64Mi"',
        ),
        ({"memory": True}, f"{AT}.memory", 'must be a factor like "2x", or a quantity like "64Mi"'),
        ({"memory": "1Gi"}, f"{AT}.memory", "must be more than resources.memory, which is 1Gi"),
        ({"cpu": "500m"}, f"{AT}.cpu", "must be more than resources.cpu, which is 1"),
        ({"cpu": 10**9}, f"{AT}.cpu", "must be at least 0.01 and at most 100000"),
    ],
)
def test_wrong_growth_is_refused_with_its_field(resources: object, field: str, detail: str) -> None:
    assert faults_of(ruled(resources)) == {field: detail}


def test_no_factor_increases_a_request_of_zero() -> None:
    body = ruled({"disk": "2x"}, resources={"cpu": 1, "memory": "1Gi"})
    text = "increases resources.disk, which is 0: use an amount, or request disk"
    assert faults_of(body) == {f"{AT}.disk": text}
    assert parse_job(ruled({"disk": "1Gi"}, resources={"cpu": 1, "memory": "1Gi"}))


@pytest.mark.parametrize(
    ("resources", "most", "field", "detail"),
    [
        ({"memory": "2x"}, {"cpu": 4}, "cpu", "has no effect: resources of the rule has no cpu"),
        (
            {"memory": "2Gi"},
            {"memory": "4Gi"},
            "memory",
            "has no effect on an amount: only factors have a maximum",
        ),
        (
            {"memory": "2x"},
            {"memory": "1Gi"},
            "memory",
            "must be more than resources.memory, which is 1Gi",
        ),
    ],
)
def test_a_maximum_without_effect_is_refused(
    resources: object, most: object, field: str, detail: str
) -> None:
    assert faults_of(ruled(resources, most)) == {f"on_exit[0].max_resources.{field}": detail}


def test_a_maximum_needs_growth() -> None:
    body = short(retries={"failure": 1}, on_exit=[{**OOM, "max_resources": {"memory": "1Gi"}}])
    text = "has no effect: the rule has no resources"
    assert faults_of(body) == {"on_exit[0].max_resources": text}


def test_a_rule_that_fails_the_task_has_no_growth() -> None:
    assert faults_of(ruled({"memory": "2x"}, do="fail")) == {AT: "has no effect with do: fail"}


@pytest.mark.parametrize("reason", ["image_error", "system_failure", "build_timeout"])
def test_growth_is_for_failures_of_the_program(reason: str) -> None:
    text = (
        f"does not help against {reason}: the reason must be exit_status, out_of_memory or"
        " user_error"
    )
    assert faults_of(ruled({"memory": "2x"}, reason=reason)) == {AT: text}


def test_growth_is_refused_for_gangs() -> None:
    body = ruled({"memory": "2x"}, coscheduled=True, replicas=2)
    text = "is not supported for a coscheduled job: its tasks are placed together"
    assert faults_of(body) == {AT: text}
