"""Concurrency keys in the spec: what is accepted, and what is refused with its field."""

from typing import Any

import pytest

from controlplane.spec import InvalidSpec, parse_job


def job(**more: Any) -> dict[str, Any]:
    return {"name": "a", "image": "busybox", **more}


def faults(**more: Any) -> dict[str, str]:
    with pytest.raises(InvalidSpec) as refused:
        parse_job(job(**more))
    return {fault.field: fault.detail for fault in refused.value.faults}


@pytest.mark.parametrize(
    "rule",
    [
        {"key": "customer-42", "limit": 2},
        {"key": "ann@example.org/7", "limit": 100_000, "on_conflict": "replace"},
        {"key": "k" * 255, "starts": {"count": 1, "per_seconds": 3600}},
        {"key": "1", "limit": 1, "starts": {"count": 10_000, "per_seconds": 1}},
    ],
)
def test_valid_rule_is_accepted_in_both_forms(rule: dict[str, Any]) -> None:
    short = parse_job(job(concurrency=rule)).concurrency
    groups = [{"name": "main", "image": "busybox"}]
    assert short is not None
    assert short == parse_job({"name": "a", "groups": groups, "concurrency": rule}).concurrency
    assert short.on_conflict == rule.get("on_conflict", "wait")


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        ({"limit": 1}, "concurrency.key"),
        ({"key": "", "limit": 1}, "concurrency.key"),
        ({"key": "a b", "limit": 1}, "concurrency.key"),
        ({"key": "k" * 256, "limit": 1}, "concurrency.key"),
        ({"key": "k", "limit": 0}, "concurrency.limit"),
        ({"key": "k", "limit": 100_001}, "concurrency.limit"),
        ({"key": "k", "limit": True}, "concurrency.limit"),
        ({"key": "k", "limit": 1, "on_conflict": "stop"}, "concurrency.on_conflict"),
        ({"key": "k", "starts": {"count": 0, "per_seconds": 1}}, "concurrency.starts.count"),
        ({"key": "k", "starts": {"count": 1}}, "concurrency.starts.per_seconds"),
        (
            {"key": "k", "starts": {"count": 1, "per_seconds": 3601}},
            "concurrency.starts.per_seconds",
        ),
        ({"key": "k"}, "concurrency"),
        (
            {"key": "k", "starts": {"count": 1, "per_seconds": 1}, "on_conflict": "reject"},
            "concurrency",
        ),
    ],
)
def test_wrong_rule_is_refused_with_its_field(rule: dict[str, Any], field: str) -> None:
    assert list(faults(concurrency=rule)) == [field]


def test_gang_that_could_never_start_is_refused() -> None:
    rule = {"key": "k", "limit": 3, "starts": {"count": 2, "per_seconds": 1}}
    text = "must be at least 4: so many tasks of the gang start together"
    assert faults(replicas=4, coscheduled=True, concurrency=rule) == {
        "concurrency.limit": text,
        "concurrency.starts.count": text,
    }
    parse_job(job(replicas=4, min_available=2, coscheduled=True, concurrency=rule))
    parse_job(job(replicas=4, concurrency=rule))


def test_group_has_no_key_of_its_own() -> None:
    group = {"name": "main", "image": "busybox", "concurrency": {"key": "k", "limit": 1}}
    with pytest.raises(InvalidSpec, match="does not belong here"):
        parse_job({"name": "a", "groups": [group]})
