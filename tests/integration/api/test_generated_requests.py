"""Every response to a generated request has a status and a document that the description has.

The requests have headers, too, although the description names none.

SIMULATION_BASE, which the header of a test run prints, decides the requests.
"""

import os
from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import Any

import pytest
import requests
import schemathesis
from django.db import connection
from django.test import Client
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode, Response
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from controlplane.models import Cell
from tests.integration.api.conftest import Caller, change_setting
from tests.integration.api.test_walls import Installation, make_installation, undone

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
ROLES = ("anonymous", "viewer", "submitter", "manager", "auditor", "operator")
EXAMPLES = {GenerationMode.POSITIVE: 4, GenerationMode.NEGATIVE: 3}
"""Requests for each operation, which each role sends."""


@cache
def served_description() -> Any:
    """The operations of the description that the web process serves."""
    return schemathesis.openapi.from_dict(Client().get("/api/schema/?format=json").json())


@cache
def operations_by_resource() -> dict[str, list[Any]]:
    """The operations, by the first word of their path."""
    found: dict[str, list[Any]] = {}
    for result in served_description().get_all_operations():
        operation = result.ok()
        resource = operation.path.split("/")[3].partition(":")[0]
        found.setdefault(resource, []).append(operation)
    return found


RESOURCES = (
    "alerts",
    "attempts",
    "audit",
    "auditors",
    "bulk",
    "cache",
    "callback-key",
    "callbacks",
    "cells",
    "domains",
    "events",
    "exec",
    "jobs",
    "logs",
    "notification-addresses",
    "notification-rules",
    "pools",
    "projects",
    "quotas",
    "schedules",
    "secrets",
    "store",
    "tasks",
    "tokens",
    "usage",
    "usage.csv",
    "users",
    "whoami",
)


def known_values(ids: dict[str, Any], operation: Any) -> dict[str, Any]:
    """Parameters of the path that name objects of the installation."""
    names = {
        "cells": "cell-1",
        "pools": "default",
        "notification-addresses": "ops",
        "notification-rules": "night",
        "schedules": "nightly",
        "secrets": "token",
        "quotas": "default/lab",
        "users": "owner",
        "projects": "robot",
        "attempts": "model",
    }
    resource = operation.path.split("/")[3]
    known = {
        "alert_id": ids["alert"],
        "callback_id": ids["callback"],
        "domain": "default",
        "group_id": ids["group"],
        "job_id": ids["job"],
        "key": "k@1",
        "operation_id": ids["operation"],
        "kind": "project",
        "members": "users",
        "name": names.get(resource, "viewer"),
        "project": "lab",
        "session": str(ids["exec_session"]),
        "stream": "stdout",
        "task": ids["task"],
        "token_id": ids["token"],
        "uid": str(ids["uid"]),
    }
    return {name: value for name, value in known.items() if f"{{{name}}}" in operation.path}


@pytest.fixture
def installation(make_cell: Callable[..., Cell], settings: Any) -> Installation:
    change_setting(settings, request_burst_units=10**12, request_units_per_second=10**9)
    return make_installation(make_cell)


DATE = "Fri, 27 Nov 2026 12:00:00 GMT"
HEADERS = {
    "Accept": ("*/*", "text/html", "application/yaml;q=0.5, application/json", "nothing"),
    "Accept-Encoding": ("gzip", "br;q=1.0, identity;q=0"),
    "Accept-Language": ("de-DE,de;q=0.9", "*"),
    "Content-Encoding": ("gzip", "deflate"),
    "Expect": ("100-continue",),
    "Forwarded": ("for=192.0.2.1;proto=https", "for="),
    "Idempotency-Key": ("a-1", "", "a" * 300),
    "If-Match": ("*", '"a"', "a, b"),
    "If-Modified-Since": (DATE, "yesterday"),
    "If-None-Match": ("*", '"a"', 'W/"a", "b'),
    "If-Range": (DATE, '"a"'),
    "If-Unmodified-Since": (DATE,),
    "Origin": ("https://example.org", "null"),
    "Range": ("bytes=0-0", "bytes=1-", "bytes=-1", "bytes=9-1", "bytes=0-0,2-3", "items=1-2"),
    "X-Cellrun-Cell": ("cell-1", "cell-9"),
    "X-Cellrun-Mac": ("00" * 32, "x"),
    "X-Cellrun-Time": ("0", "1e999", "nan", "1795780800"),
    "X-Forwarded-For": ("192.0.2.1", "2001:db8::1, 192.0.2.1", "unknown"),
    "X-Forwarded-Host": ("example.org",),
    "X-Forwarded-Proto": ("https",),
    "X-HTTP-Method-Override": ("DELETE",),
    "X-Request-Id": ("a-1", "a b", "a" * 100),
}
"""Headers that web, a proxy or a framework reads, with usual values and malformed ones."""

# What a server accepts in a header: no control characters.
_TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=255, categories=("L", "N", "P", "Z")))
_NAMED = st.sampled_from([(name, value) for name, values in HEADERS.items() for value in values])
SENT_HEADERS = st.lists(
    st.one_of(_NAMED, _NAMED, st.tuples(st.sampled_from(sorted(HEADERS)), _TEXT)), max_size=5
).map(dict)


def send(case: Case, caller: Caller, headers: dict[str, str]) -> Response:
    """Send a generated request in this process, in the transaction of the test."""
    request = requests.Request(**case.as_transport_kwargs(base_url="http://localhost")).prepare()
    body = request.body or b""
    answer = caller.send(
        request.method or "",
        request.url or "",
        body.encode() if isinstance(body, str) else body,
        content_type=str(request.headers.get("Content-Type", "")),
        **headers,
    )
    received = {name: [value] for name, value in answer.headers.items()}
    return Response(answer.status, received, answer.content, request, elapsed=0, verify=False)


def test_every_operation_belongs_to_a_resource_that_is_tested() -> None:
    assert set(operations_by_resource()) == set(RESOURCES)


def violations_of(
    installation: Installation, operation: Any, mode: GenerationMode
) -> Iterator[str]:
    """Send generated requests with the token of each role, and describe what is undocumented."""
    base = int(os.environ["SIMULATION_BASE"])
    draw = Random(f"{base} {operation.label} {mode}")
    found: dict[tuple[str, str], str] = {}

    @seed(base)
    @settings(
        database=None,
        deadline=None,
        max_examples=EXAMPLES[mode],
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode), SENT_HEADERS)
    def send_as_each_role(case: Case, headers: dict[str, str]) -> None:
        if draw.random() < 0.7:
            case.path_parameters = {
                **(case.path_parameters or {}),
                **known_values(installation.ids, operation),
            }
        for role in ROLES:
            with undone():
                caller = installation.callers.get(role) or Caller(None)
                response = send(case, caller, headers)
                if response.status_code < 400:
                    # The constraints that a commit would check.
                    connection.check_constraints()
            try:
                case.validate_response(response, checks=CHECKS)
            except FailureGroup as group:
                for failure in group.exceptions:
                    text = f"{operation.label} as {role}: {failure}\n{case.as_curl_command()}"
                    found.setdefault(
                        (role, f"{type(failure).__name__} {response.status_code}"),
                        f"{text}\n{headers}",
                    )

    try:
        send_as_each_role()
    except Unsatisfiable:
        # Nothing about a request without parameters and body can be invalid.
        assert mode is GenerationMode.NEGATIVE
    yield from found.values()


@pytest.mark.parametrize("resource", RESOURCES)
def test_response_is_described(installation: Installation, resource: str) -> None:
    found = [
        text
        for operation in operations_by_resource()[resource]
        for mode in EXAMPLES
        for text in violations_of(installation, operation, mode)
    ]
    assert not found, f"SIMULATION_BASE={os.environ['SIMULATION_BASE']}\n" + "\n\n".join(found)
