"""Ports, health checks and limits: what is taken, and what is refused where."""

from typing import Any

import pytest

from controlplane.spec import InvalidSpec, parse_job

HTTP = {"port": "http"}


def faults_of(**fields: Any) -> dict[str, str]:
    with pytest.raises(InvalidSpec) as refused:
        parse_job({"name": "a", "image": "busybox", **fields})
    return {fault.field: fault.detail for fault in refused.value.faults}


def test_a_health_check_has_defaults() -> None:
    check = {"http": {"port": "http"}}
    job = parse_job({"name": "a", "image": "b", "ports": ["http"], "health_check": check})
    [group] = job.groups
    assert group.health_check is not None
    assert group.health_check.http is not None
    assert group.health_check.http.path == "/"
    found = group.health_check
    assert (found.interval_seconds, found.timeout_seconds, found.retries) == (5.0, 5.0, 3)
    assert found.start_period_seconds == 60.0


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"ports": ["Http"]}, "ports[0]"),
        ({"ports": ["a_b"]}, "ports[0]"),
        ({"ports": ["http", "ssh", "http"]}, "ports[2]"),
        ({"ports": [f"p{n}" for n in range(17)]}, "ports"),
        ({"ports": ["http"], "network": "none"}, "ports"),
        ({"health_check": {}}, "health_check"),
        ({"health_check": {"command": []}}, "health_check.command"),
        ({"health_check": {"command": ["true"], "http": HTTP}}, "health_check"),
        ({"health_check": {"http": HTTP}}, "health_check.http.port"),
        ({"health_check": {"http": {"port": "http", "path": "up"}}}, "health_check.http.path"),
        ({"health_check": {"http": {**HTTP, "path": "/a b"}}}, "health_check.http.path"),
        ({"health_check": {"http": {**HTTP, "path": "/\r\nX: y"}}}, "health_check.http.path"),
        ({"health_check": {"command": ["a"], "retries": 0}}, "health_check.retries"),
        ({"health_check": {"command": ["a"], "interval_seconds": 0}}, "health_check.interval_s"),
        ({"health_check": {"command": ["a"], "timeout_seconds": 1e9}}, "health_check.timeout_s"),
        ({"health_check": {"command": ["a"], "start_period_seconds": 0}}, "health_check.start_p"),
        ({"idle_timeout_seconds": 0.5}, "idle_timeout_seconds"),
        ({"lifetime_seconds": 0}, "lifetime_seconds"),
        ({"kind": "Batch"}, "kind"),
    ],
)
def test_invalid_service_option_is_refused_at_its_field(fields: dict[str, Any], field: str) -> None:
    assert any(found.startswith(field) for found in faults_of(**fields))


def test_health_check_on_a_declared_port_is_accepted() -> None:
    check = {"http": {"port": "http", "path": "/health?deep=1"}}
    job = parse_job({"name": "a", "image": "b", "ports": ["http"], "health_check": check})
    assert job.groups[0].ports == ["http"]
