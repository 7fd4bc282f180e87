"""The id of a request is in its response, in problem documents and in its log lines."""

import io
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

from controlplane.config.asgi import application
from controlplane.queries.tenancy import access
from tests.integration.api.asgi import AsgiAnswer, call
from tests.integration.api.conftest import Caller

pytestmark = pytest.mark.django_db(transaction=True)

NAME = b"x-request-id"
NEW = re.compile(r"[0-9a-f]{32}")


def get(path: str, *ids: bytes, token: str = "") -> AsgiAnswer:
    headers = [(NAME, one) for one in ids]
    if token:
        headers.append((b"authorization", token.encode()))
    return call(application, "GET", path, *headers)


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What the web process logs, in the format of the settings."""
    stream, root = io.StringIO(), logging.getLogger()
    formatter = next(
        found.formatter for found in root.handlers if type(found) is logging.StreamHandler
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    root.addHandler(handler)
    yield stream
    root.removeHandler(handler)


@pytest.mark.parametrize("given", [b"a", b"Aa0._-" * 10 + b"wxyz"])
def test_a_safe_id_of_up_to_64_characters_is_accepted(given: bytes) -> None:
    assert get("/healthz", given).values(NAME) == [given.decode()]


@pytest.mark.parametrize(
    "given",
    [
        (),
        (b"",),
        (b"a" * 65,),
        (b"a b",),
        (b'a"b',),
        (b"a\n",),
        ("\u00e9".encode(),),
        (b"\xff",),
        (b"first", b"second"),
    ],
)
def test_another_id_is_replaced_by_a_new_one(given: tuple[bytes, ...]) -> None:
    (first,) = get("/healthz", *given).values(NAME)
    (second,) = get("/healthz", *given).values(NAME)
    assert NEW.fullmatch(first)
    assert NEW.fullmatch(second)
    assert first != second


@pytest.mark.parametrize("path", ["/api/v1/nothing", "/api/v1/jobs", "/metrics/"])
def test_every_response_has_an_id(path: str) -> None:
    assert len(get(path).values(NAME)) == 1


def test_problems_of_the_api_and_of_the_limit_of_bodies_have_the_id() -> None:
    missing = get("/api/v1/jobs", b"a-1")
    assert (missing.status, missing.json["request_id"]) == (401, "a-1")
    length = (b"content-length", b"999999999")
    refused = call(application, "POST", "/api/v1/jobs", length, (NAME, b"a-2"))
    assert (refused.status, refused.json["request_id"]) == (413, "a-2")
    assert refused.values(NAME) == ["a-2"]


def test_log_lines_of_a_request_have_its_id_and_no_other_lines(
    submitter: Caller, lines: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(access, "find_job_place", fail)
    answer = get("/api/v1/jobs/1", b"a-3", token=submitter.headers["Authorization"])
    assert (answer.status, answer.json["request_id"]) == (500, "a-3")
    logging.getLogger("controlplane").warning("of no request")
    found = [json.loads(line) for line in lines.getvalue().splitlines()]
    by_event = {line["event"]: line.get("request_id") for line in found}
    assert by_event["request_failed"] == "a-3"
    assert by_event["Internal Server Error: /api/v1/jobs/1"] == "a-3"  # of Django
    assert by_event["of no request"] is None
