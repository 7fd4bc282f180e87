"""Bad input: a problem document that names the field and the limit; nothing is created."""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from controlplane import clock
from controlplane.commands.tenancy.tokens import create_api_token
from controlplane.domain.roles import Role
from controlplane.models import Job, Task, TaskGroup, Transition
from tests.integration.api.conftest import Caller, make_caller

JOB = {"name": "hello", "image": "busybox"}
MISSING_UID = "00000000-0000-7000-8000-000000000000"


@pytest.fixture(autouse=True)
def nothing_created(db: None) -> Iterator[None]:
    """Whatever a test of this file does, no row comes of it."""
    yield
    for model in (Job, TaskGroup, Task, Transition):
        assert not model.objects.exists()


@pytest.mark.parametrize(
    ("fields", "field", "detail"),
    [
        ({"foo": 1}, "foo", "unknown field"),
        ({"replicas": "3"}, "replicas", "must be a whole number"),
        ({"replicas": 0}, "replicas", "must be at least 1"),
        ({"replicas": -3}, "replicas", "must be at least 1"),
        ({"replicas": 10_001}, "replicas", "10000"),
        ({"replicas": 10**12}, "replicas", "must be at most"),
        ({"name": "Hello World"}, "name", "must match"),
        ({"image": "no image"}, "image", "is not an image reference"),
        ({"resources": {"memory": "-1Gi"}}, "resources.memory", "must not be negative"),
        ({"resources": {"cpu": 10**6}}, "resources.cpu", "at most 100000"),
        ({"timeout_seconds": 10**10}, "timeout_seconds", "must be at most 31536000"),
        ({"group_by": "zone"}, "group_by", "only valid for a coscheduled job"),
        ({"resources": {"Gpu": 1}}, "resources.Gpu", "must match"),
        ({"constraints": [{"key": "zone", "op": "in"}]}, "constraints[0].values", "at least one"),
        ({"placement_tags": ["a", "a"]}, "placement_tags[1]", "named twice"),
        ({"annotation": "a\u0000b"}, "annotation", "NUL"),
        ({"annotation": "\ud83d"}, "annotation", "surrogate"),
        ({"env": {"A": "\u0000"}}, "env.A", "NUL"),
    ],
)
def test_a_bad_field_is_named_with_its_limit(
    submitter: Caller, fields: dict[str, Any], field: str, detail: str
) -> None:
    answer = submitter.post("/jobs", {**JOB, **fields})
    assert answer.status == 422
    assert detail in answer.faults[field]
    assert field in answer.json["detail"]
    assert submitter.post("/jobs:batch", [JOB, {**JOB, **fields}]).status == 422


@pytest.mark.parametrize(
    ("text", "content_type", "detail"),
    [
        (b"{", "application/json", "not JSON"),
        (b'{"a": NaN}', "application/json", "NaN"),
        (b'{"name": "a", "name": "b"}', "application/json", "occurs twice"),
        (b"\xff", "application/json", "not UTF-8"),
        (b"[" * 50_000, "application/json", "nested too deeply"),
        (b"a: [", "application/yaml", "not YAML"),
        (b"a: &x 1\nb: *x", "application/yaml", "aliases"),
        (b"a: !!set {x}", "text/yaml", "tags"),
        (b"--- {}\n--- {}", "application/x-yaml", "more than one"),
    ],
)
def test_unparsable_body_is_refused(
    submitter: Caller, text: bytes, content_type: str, detail: str
) -> None:
    answer = submitter.send("POST", "/jobs", text, content_type=content_type)
    assert answer.status == 400
    assert answer.faults == {}
    assert detail in answer.json["detail"]


@pytest.mark.parametrize("depth", [70, 500])
def test_deeply_nested_body_is_refused(submitter: Caller, depth: int) -> None:
    text = '{"name": "a", "image": "x", "env": ' + '{"a": ' * depth + "1" + "}" * depth + "}"
    answer = submitter.send("POST", "/jobs", text.encode(), content_type="application/json")
    assert answer.status == 422
    assert "more than 64 nested lists and mappings" in answer.json["detail"]


@pytest.mark.parametrize("body", [[], "x", 1, None])
def test_body_that_is_not_a_mapping_is_refused(submitter: Caller, body: Any) -> None:
    text = json.dumps(body).encode()
    answer = submitter.send("POST", "/jobs", text, content_type="application/json")
    assert (answer.status, answer.faults) == (422, {"": "a job is a mapping of names to values"})


@pytest.mark.parametrize(
    "content_type", ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "x"]
)
def test_unsupported_content_type_is_refused(submitter: Caller, content_type: str) -> None:
    answer = submitter.send("POST", "/jobs", json.dumps(JOB).encode(), content_type=content_type)
    assert answer.status == 415
    assert "application/json or application/yaml" in answer.json["detail"]


def test_a_body_over_4_mib_is_refused_with_the_limit(submitter: Caller) -> None:
    for path in ("/jobs", "/jobs:batch", "/jobs:dry-run"):
        answer = submitter.post(path, {**JOB, "annotation": "x" * 4 * 1024 * 1024})
        assert answer.status == 413
        assert "4194304 bytes" in answer.json["detail"]
        assert answer.headers["Content-Type"] == "application/problem+json"


# ---------------------------------------------------------------------------------- permissions


@pytest.mark.parametrize(
    "header",
    [
        None,
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Bearer a b",
        "Basic eDp5",
        "Bearer " + "x" * 600,
        "Bearer ü",
    ],
)
def test_request_without_a_valid_token_is_refused(anonymous: Caller, header: str | None) -> None:
    named = {"Authorization": header} if header else {}
    for method, path in (("POST", "/jobs"), ("GET", "/jobs"), ("GET", "/cells")):
        answer = anonymous.send(
            method, path, json.dumps(JOB).encode(), content_type="application/json", **named
        )
        assert answer.status == 401
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        assert answer.faults == {}


def test_expired_token_is_refused(submitter: Caller) -> None:
    past = clock.now() - timedelta(seconds=1)
    token = create_api_token(
        user=submitter.user, name="old", role=Role.SUBMITTER, now=past, expires_at=past
    )
    assert Caller(token).post("/jobs", JOB).status == 401


def test_token_of_an_inactive_user_is_refused(submitter: Caller) -> None:
    submitter.user.is_active = False
    submitter.user.save()
    assert submitter.get("/jobs").status == 401


def test_viewer_token_is_read_only(anonymous: Caller) -> None:
    onlooker = make_caller("otto")
    assert onlooker.get("/jobs").status == 200
    assert onlooker.post("/jobs", JOB).status == 403
    assert onlooker.post("/jobs:dry-run", JOB).status == 403


@pytest.mark.parametrize("order", ["cordon", "uncordon", "drain", "unquarantine"])
def test_only_operators_can_order_cells(submitter: Caller, make_cell: Any, order: str) -> None:
    make_cell("cell-1")
    answer = submitter.post(f"/cells/cell-1/{order}")
    assert (answer.status, "operator" in answer.json["detail"]) == (403, True)


# -------------------------------------------------------------------------------- unknown things


@pytest.mark.parametrize(
    "path",
    [
        "/jobs/1",
        "/jobs/0",
        "/jobs/-1",
        "/jobs/x",
        "/jobs/99999999999999999999999",
        "/jobs/999999999999999999",
        "/jobs/1/tasks",
        "/jobs/1/history",
        "/tasks/1",
        "/tasks/1/attempts",
        "/tasks/1/history",
        "/tasks/1/explain",
        "/tasks/1/artifacts",
        "/tasks/1/artifacts/model",
        "/jobs/1/artifacts",
        f"/attempts/{MISSING_UID}",
        f"/attempts/{MISSING_UID}/logs",
        "/attempts/x",
        "/cells/none",
        "/cells/N%00ne",
        "/pools/none",
        "/nowhere",
        "/",
    ],
)
def test_an_unknown_id_is_not_found(operator: Caller, path: str) -> None:
    answer = operator.get(path)
    assert answer.status == 404
    assert answer.faults == {}


@pytest.mark.parametrize(
    "path", ["/jobs/1/cancel", "/tasks/1/cancel", "/cells/none/drain", "/nowhere", "/jobs:wet-run"]
)
def test_order_for_an_unknown_object_is_not_found(operator: Caller, path: str) -> None:
    assert operator.post(path, {}).status == 404


def test_unsupported_method_is_refused_with_the_allowed_ones(submitter: Caller) -> None:
    answer = submitter.send("DELETE", "/jobs")
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, POST, HEAD, OPTIONS")
    assert answer.faults == {}


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("limit=1&limit=2", "limit"),
        ("state=GONE", "state"),
        ("label=x", "label"),
        ("name=%00", "name"),
        ("cursor=!!!", "cursor"),
        ("cursor=eA", "cursor"),
        ("cursor=AA", "cursor"),
        ("colour=red", "colour"),
    ],
)
def test_invalid_query_parameter_is_named(submitter: Caller, query: str, field: str) -> None:
    answer = submitter.get(f"/jobs?{query}")
    assert (answer.status, list(answer.faults)) == (400, [field])
