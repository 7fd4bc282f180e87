"""Pools over the API: operators make and change them, and what is wrong is named."""

from io import BytesIO
from typing import Any

import pytest
from django.core.handlers.asgi import ASGIRequest
from django.urls import resolve

from controlplane import clock
from controlplane.commands.tenancy.tokens import create_api_token
from controlplane.domain.roles import Role
from controlplane.models import Job, Pool
from tests.integration.api.conftest import Answer, Caller, Wakes, check_described

DEFAULTS = {
    "sequencer": "fifo",
    "selector": "dispersed",
    "strict_fifo": False,
    "preemption": True,
    "pending_timeout_seconds": None,
    "pull_timeout_seconds": 1800,
    "create_timeout_seconds": 300,
    "max_building_per_cell": 8,
    "starvation_seconds": 300,
    "mass_loss": "hold",
    "loss_held_at": None,
    "tokens": {},
    "cells_may_join": False,
    "allowed_mounts": [],
    "privileged_allowed": False,
    "allowed_capabilities": [],
    "input_networks": [],
    "job_limits": {
        "max_pids": 16_384,
        "max_ttl_seconds": 90 * 86_400,
        "max_retries": 1_000,
        "max_grace_seconds": 3_600,
        "min_check_interval_seconds": 1,
        "always_pull": False,
        "default_disk_mib": 10_240,
        "max_ports": 16,
        "max_shm_mib": 65_536,
        "max_outputs": 64,
        "max_artifact_mib": 1_000_000_000,
    },
}


def put(caller: Caller, body: Any, name: str = "default") -> Answer:
    return caller.put(f"/pools/{name}", body)


def test_new_pool_gets_defaults_for_omitted_fields(operator: Caller) -> None:
    made = put(operator, {"sequencer": "drf", "tokens": {"licence": 4}}, "gpu")
    assert made.status == 201
    expected = {**DEFAULTS, "name": "gpu", "sequencer": "drf", "tokens": {"licence": 4}}
    assert {name: made.json[name] for name in expected} == expected
    assert made.json["validators"] == operator.get("/pools/default").json["validators"]
    assert operator.get("/pools/gpu").json == made.json
    check_described("Pool", made.json)
    assert [pool["name"] for pool in operator.get("/pools").json["results"]] == ["default", "gpu"]


def test_omitted_fields_are_unchanged(operator: Caller) -> None:
    Pool.objects.update(cursor="cell-7")
    changes: list[dict[str, Any]] = [
        {"strict_fifo": True, "tokens": {"licence": 4}},
        {"pull_timeout_seconds": 60, "starvation_seconds": None, "max_building_per_cell": None},
        {"validators": ["dependencies"], "selector": "round_robin"},
        {"tokens": {}, "pending_timeout_seconds": 600, "preemption": False},
    ]
    for change in changes:
        assert put(operator, change).status == 200
    expected = DEFAULTS | {name: value for change in changes for name, value in change.items()}
    found = operator.get("/pools/default").json
    assert {name: found[name] for name in expected} == expected
    assert put(operator, {}).json == found
    assert Pool.objects.get().cursor == "cell-7"


def test_pool_document_can_be_put_back_unchanged(operator: Caller) -> None:
    found = operator.get("/pools/default").json
    assert put(operator, found).json == found


@pytest.mark.django_db(transaction=True)
def test_a_change_wakes_placement_once_it_is_committed(operator: Caller, wakes: Wakes) -> None:
    assert put(operator, {"strict_fifo": "yes"}).status == 422
    assert wakes.take() == 0
    assert put(operator, {"strict_fifo": True}).status == 200
    assert wakes.take() == 1


@pytest.mark.parametrize(
    ("body", "field", "text"),
    [
        ({"sequencer": "none"}, "sequencer", "none: not installed (installed: "),
        ({"selector": "fifo"}, "selector", "fifo: not installed ("),
        ({"validators": ["dependencies", "x"]}, "validators", "x: not installed ("),
        (
            {"validators": ["user_quota", "user_quota"]},
            "validators",
            "must not name a validator twice",
        ),
        ({"validators": "user_quota"}, "validators", "must be a list"),
        ({"strict_fifo": "true"}, "strict_fifo", "must be true or false"),
        ({"preemption": None}, "preemption", "must be true or false"),
        ({"pull_timeout_seconds": 0}, "pull_timeout_seconds", "must be at least 1"),
        ({"pull_timeout_seconds": 1.5}, "pull_timeout_seconds", "must be a whole number"),
        ({"create_timeout_seconds": 1 << 40}, "create_timeout_seconds", "must be at most"),
        ({"max_building_per_cell": 0}, "max_building_per_cell", "must be at least 1"),
        ({"starvation_seconds": -1}, "starvation_seconds", "must be at least 0"),
        ({"tokens": {"x": -1}}, "tokens.x", "must be at least 0"),
        ({"tokens": {"x": True}}, "tokens.x", "must be a whole number"),
        ({"tokens": {"cpu": 1}}, "tokens", "cpu is a reserved name"),
        ({"tokens": {"A B": 1}}, "tokens", "'A B': a name must match"),
        ({"tokens": []}, "tokens", "must be a mapping"),
        ({"mass_loss": "maybe"}, "mass_loss", "must be 'hold' or 'proceed'"),
        ({"allowed_mounts": ["/"]}, "allowed_mounts[0]", "must be"),
        ({"allowed_mounts": [{"path": "a"}]}, "allowed_mounts[0].path", "must be an absolute"),
        ({"privileged_allowed": 1}, "privileged_allowed", "must be"),
        ({"job_limits": {"max_pids": 0}}, "job_limits.max_pids", "must be at least 1"),
        ({"job_limits": {"max_grace_seconds": 3601}}, "job_limits.max_grace_seconds", "must be"),
        ({"job_limits": {"max_ports": 17}}, "job_limits.max_ports", "must be at most 16"),
        ({"job_limits": {"max_shm_mib": 0}}, "job_limits.max_shm_mib", "must be at least 1"),
        ({"job_limits": {"pids": 5}}, "job_limits.pids", "unknown field"),
        ({"job_limits": None}, "job_limits", "must be a mapping"),
        ({"input_networks": ["10.0.0.1/8"]}, "input_networks", "10.0.0.1/8 is not a network"),
        ({"input_networks": "10.0.0.0/8"}, "input_networks", "must be a list"),
        ({"allowed_capabilities": ["net_raw"]}, "allowed_capabilities[0]", "must match"),
        ({"allowed_capabilities": "NET_RAW"}, "allowed_capabilities", "must be a list"),
        ({"allowed_capabilities": ["NET_RAW", "ALL"]}, "allowed_capabilities", "ALL is not the"),
        ({"allowed_capabilities": ["CAP_NET_RAW"]}, "allowed_capabilities", "CAP_NET_RAW is not"),
        ({"sequenser": "drf"}, "sequenser", "unknown field; did you mean sequencer?"),
        ({"cursor": "cell-1"}, "cursor", "unknown field"),
        ({"name": "other"}, "name", "must be default, as in the URL"),
        ([], "", "must be a mapping"),
    ],
)
def test_invalid_field_is_named_and_nothing_changes(
    operator: Caller, body: Any, field: str, text: str
) -> None:
    before = operator.get("/pools/default").json
    answer = put(operator, {"strict_fifo": True, **body} if isinstance(body, dict) else body)
    assert (answer.status, list(answer.faults)) == (422, [field])
    assert answer.faults[field].startswith(text)
    assert operator.get("/pools/default").json == before


def test_limits_of_jobs_are_enforced_with_the_limit_in_the_text(
    operator: Caller, submitter: Caller
) -> None:
    job = {"name": "a", "image": "busybox", "max_pids": 20_000}
    refused = submitter.post("/jobs", job)
    assert refused.status == 422
    assert refused.faults == {"max_pids": "must be at most 16384 in pool default"}
    assert put(operator, {"job_limits": {"max_pids": 20_000}}).status == 200
    assert operator.get("/pools/default").json["job_limits"] == {
        **DEFAULTS["job_limits"],
        "max_pids": 20_000,
    }
    assert submitter.post("/jobs", job).status == 201
    assert put(operator, {"job_limits": {"max_ttl_seconds": 60}}).status == 200
    refused = submitter.post("/jobs:dry-run", {**job, "ttl_seconds_after_finished": 61})
    assert refused.faults == {
        "max_pids": "must be at most 16384 in pool default",
        "ttl_seconds_after_finished": "must be at most 60 s in pool default",
    }
    made = submitter.post("/jobs", {"name": "b", "image": "busybox"})
    assert Job.objects.get(pk=made.json["id"]).ttl_seconds == 60


def test_refused_pool_is_not_created(operator: Caller) -> None:
    answer = put(operator, {"sequencer": "x", "selector": "y", "tokens": {"a": 1}}, "gpu")
    assert (answer.status, set(answer.faults)) == (422, {"sequencer", "selector"})
    assert operator.get("/pools/gpu").status == 404
    assert put(operator, {}, "Gpu").status == 404


def test_chunked_body_without_content_length_is_read(operator: Caller) -> None:
    token = create_api_token(user=operator.user, name="chunks", role=Role.OPERATOR, now=clock.now())
    path = "/api/v1/pools/default"
    headers = [
        (b"authorization", f"Bearer {token}".encode()),
        (b"content-type", b"application/json"),
        (b"transfer-encoding", b"chunked"),
    ]
    scope = {"type": "http", "method": "PUT", "path": path, "query_string": b"", "headers": headers}
    view = resolve(path)
    request = ASGIRequest(scope, BytesIO(b'{"strict_fifo": true}'))
    assert view.func(request, **view.kwargs).status_code == 200
    assert Pool.objects.get().strict_fifo is True


def test_only_operators_can_change_pools(
    submitter: Caller, operator: Caller, anonymous: Caller
) -> None:
    assert submitter.get("/pools/default").status == 200
    assert put(submitter, {"strict_fifo": True}).status == 403
    assert put(submitter, {}, "new").status == 403
    assert put(anonymous, {}).status == 401
    assert Pool.objects.get().strict_fifo is False
