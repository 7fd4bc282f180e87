"""No mutation of a valid body gets a server error, and a refused one leaves nothing behind.

SIMULATION_BASE, which the header of a test run prints, decides the mutations.
"""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from django.conf import settings as django_settings
from django.db import connection

from controlplane.models import AuditLine, Cell
from tests.harness.mutated import mutate_body
from tests.integration.api.conftest import Answer, Caller, change_setting
from tests.integration.api.test_walls import (
    ROUTES,
    Installation,
    make_installation,
    undone,
)

GROUP = {
    "name": "a",
    "image": "registry.example:5000/team/tool:1",
    "command": ["sh", "-c", "true"],
    "entrypoint": ["/bin/init"],
    "workdir": "/work",
    "user": "1000:1000",
    "env": {"A": "1", "B_C": ""},
    "replicas": 3,
    "min_available": 2,
    "resources": {"cpu": 0.5, "memory": "64Mi", "gpu": 0},
    "inputs": [
        {"path": "/in/text", "content": "x"},
        {"path": "/in/data", "url": "https://files.example/data"},
    ],
    "outputs": [{"name": "model", "path": "/out/model"}],
    "timeout_seconds": 60,
    "stop_grace_seconds": 1.5,
    "retries": {"failure": 2, "system": 3},
    "ports": ["http"],
    "shm": "64Mi",
    "tmpfs": [{"path": "/scratch", "size": "16Mi"}],
}
FULL_JOB: dict[str, Any] = {
    "name": "sweep",
    "guid": "g-1",
    "project": "lab",
    "band": "batch",
    "max_task_failures": 1,
    "start_after": "2100-01-01T00:00:00Z",
    "scheduling_timeout_seconds": 600,
    "labels": {"team": "x"},
    "annotation": "note",
    "constraints": [{"key": "zone", "op": "in", "values": ["a", "b"], "required": False}],
    "placement_tags": [],
    "callback": {"url": "https://hooks.example/x"},
    "existing_job_policy": "error",
    "allow_unsatisfiable": True,
    "ttl_seconds_after_finished": 3600,
    "groups": [
        GROUP,
        {
            "name": "b",
            "image": "busybox",
            "depends_on": [{"group": "a", "until": "succeeded"}],
            "inputs": [{"from": {"group": "a", "result": True}, "path": "/in/parts/"}],
        },
    ],
}
ONE_OFF = {
    "guid": "new-task",
    "domain": "d",
    "project": "default/lab",
    "definition": {key: GROUP[key] for key in ("image", "command", "env", "resources")},
}
CELL = {
    "name": "cell-1",
    "pool": "default",
    "node_labels": {"node/zone": "a"},
    "max_capacity": {"cpu": 2, "memory": "1Gi", "gpu": 1},
    "fixed_tags": ["quiet", "ssd?"],
}
POOL = {
    "sequencer": "fifo",
    "selector": "dispersed",
    "preemption": False,
    "pending_timeout_seconds": 60,
    "max_building_per_cell": 4,
    "starvation_seconds": None,
    "mass_loss": "proceed",
    "tokens": {"licence": 3},
    "allowed_mounts": [{"path": "/data", "read_only": True}],
    "allowed_capabilities": ["NET_RAW"],
    "job_limits": {},
}
QUOTA = {
    "resources": {"cpu": 4, "memory": "1Gi"},
    "running_jobs": 3,
    "pending_tasks": 100,
    "weight": 2.5,
    "highest_band": "batch",
}
TOKEN = {
    "name": "more",
    "role": "submitter",
    "projects": ["default/lab"],
    "expires_in_days": 30,
}
BODIES: Mapping[tuple[str, str], list[Any]] = {
    ("post", "/jobs"): [FULL_JOB, ROUTES["post", "/jobs"][2]],
    ("post", "/jobs:batch"): [[FULL_JOB, {**ROUTES["post", "/jobs"][2], "name": "second"}]],
    ("post", "/jobs:dry-run"): [FULL_JOB],
    ("post", "/tasks"): [ONE_OFF],
    ("put", "/cells/{name}"): [CELL],
    ("post", "/cells/{name}/drain"): [{"deadline_seconds": 30.5}],
    ("put", "/pools/{name}"): [POOL],
    ("put", "/quotas/{kind}/{name}"): [QUOTA],
    ("post", "/tokens"): [TOKEN],
    ("post", "/tasks/{task}/cancel"): [{"reason": "enough", "force": True}],
    ("post", "/jobs/{job_id}/cancel"): [{"reason": "enough", "force": True}],
    ("put", "/secrets/{name}"): [
        {"value": "x"},
        {"value_base64": "eA=="},
        {"registry": {"server": "r.example", "username": "u", "password": "p"}},
    ],
}
"""Valid bodies with more fields than the shortest ones of ROUTES."""
SUBMISSIONS = ("/jobs", "/jobs:batch", "/jobs:dry-run", "/tasks")


@cache
def routes_with_bodies() -> dict[tuple[str, str], bool]:
    """Every described route with a body, and whether the body is a document."""
    text = (Path(__file__).parents[3] / "docs" / "openapi.yaml").read_text()
    paths = yaml.load(text, Loader=yaml.CSafeLoader)["paths"]
    return {
        (method, path.removeprefix("/api/v1")): "application/json"
        in found["requestBody"]["content"]
        for path, methods in paths.items()
        for method, found in methods.items()
        if "requestBody" in found
    }


def bodies_of(route: tuple[str, str]) -> list[Any]:
    """The valid bodies of a route; of one with raw bytes, any document."""
    return BODIES.get(route) or [ROUTES[route][2] or {}]


@pytest.fixture
def installation(make_cell: Callable[..., Cell], settings: Any) -> Installation:
    change_setting(settings, request_burst_units=10**12, request_units_per_second=10**9)
    return make_installation(make_cell)


def test_bodies_are_valid_before_their_mutation(installation: Installation) -> None:
    operator = installation.callers["operator"]
    documents = [route for route, is_document in routes_with_bodies().items() if is_document]
    for route in documents:
        method, url = route[0].upper(), ROUTES[route][1].format(**installation.ids)
        for body in bodies_of(route):
            with undone():
                answer = operator.put(url, body) if method == "PUT" else operator.post(url, body)
                # Some objects are in a state that does not permit the change.
                assert answer.status in (200, 201, 202, 409), answer.content


@cache
def counting_query() -> str:
    """A query for the number of rows of each table."""
    tables = sorted(connection.introspection.table_names())
    return " UNION ALL ".join(f"SELECT '{name}', count(*) FROM \"{name}\"" for name in tables)


def count_rows() -> dict[str, int]:
    """The number of rows of each table, without the audit log, which also records refusals."""
    with connection.cursor() as cursor:
        cursor.execute(counting_query())
        counts = dict(cursor.fetchall())
    del counts[AuditLine._meta.db_table]
    return counts


def list_files() -> list[Path]:
    """The files of the store."""
    return [path for path in django_settings.CELLRUN.artifact_root.rglob("*") if path.is_file()]


def send_one(
    installation: Installation,
    caller: Caller,
    route: tuple[str, str],
    random: Random,
    before: dict[str, int],
) -> Answer:
    """Send one mutated body, check what it leaves behind, and undo it."""
    method, url = route[0].upper(), ROUTES[route][1].format(**installation.ids)
    body = mutate_body(random, random.choice(bodies_of(route)))
    with undone():
        answer = caller.send(method, url, body.content, content_type=body.media_type)
        if answer.status < 400:
            # The constraints that a commit would check.
            connection.check_constraints()
        else:
            assert count_rows() == before
    if answer.status >= 400 or route[1] == "/jobs:dry-run":
        assert list_files() == []
    else:
        shutil.rmtree(django_settings.CELLRUN.artifact_root, ignore_errors=True)
    return answer


@pytest.mark.parametrize("count", [750, pytest.param(5_000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("role", ["operator", "submitter"])
def test_mutated_body_is_accepted_or_refused_as_a_whole(
    installation: Installation, role: str, count: int
) -> None:
    caller, base = installation.callers[role], os.environ["SIMULATION_BASE"]
    routes = sorted(routes_with_bodies())
    # A document for a submission has more places than all others.
    routes += [("post", path) for path in SUBMISSIONS] * 8
    seen: Counter[int] = Counter()
    before = count_rows()
    for number in range(count):
        seed = f"{base} {role} {number}"
        random = Random(seed)
        route = random.choice(routes)
        try:
            answer = send_one(installation, caller, route, random, before)
        except Exception as error:
            raise AssertionError(f"mutation {seed!r} of {route}") from error
        assert answer.status < 500, f"mutation {seed!r} of {route}: {answer.content!r}"
        assert answer.status != 429, "the limits of requests would hide the answers"
        seen[answer.status] += 1
    print(f"{role}: {count} mutated bodies of SIMULATION_BASE={base}: {dict(sorted(seen.items()))}")
    # Some mutations keep a body valid; most are refused for each of the reasons.
    assert {201, 400, 415, 422} <= set(seen), seen
