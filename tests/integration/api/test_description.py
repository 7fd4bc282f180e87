"""The OpenAPI description is complete and true to the code; its committed copy is up to date."""

import base64
import re
import select
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import call_command
from django.db import InternalError, OperationalError, connection, transaction
from django.test import Client
from django.urls import get_resolver

from controlplane.api.description import served
from controlplane.api.urls import urlpatterns
from controlplane.config.urls import urlpatterns as root_patterns
from controlplane.spec import json_schema
from tests.integration.api.conftest import Caller, make_caller

ROOT = Path(__file__).parents[3]
SAMPLES = {
    "alert_id": "1",
    "callback_id": "1",
    "domain": "default",
    "key": "a@1",
    "job_id": "1",
    "kind": "user",
    "members": "users",
    "name": "a",
    "operation_id": "1",
    "project": "default",
    "session": "00000000-0000-7000-8000-000000000000",
    "task": "1",
    "token_id": "1",
    "uid": "00000000-0000-7000-8000-000000000000",
}
"""A value of each parameter of the addresses that change something."""


@pytest.fixture(scope="module")
def description(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The description of the API, made once: that takes seconds."""
    target = tmp_path_factory.mktemp("description") / "openapi.yaml"
    call_command("spectacular", file=str(target), validate=True, fail_on_warn=True)
    return yaml.safe_load(target.read_text())


def test_committed_openapi_file_is_up_to_date(description: Any) -> None:
    committed = yaml.safe_load((ROOT / "docs" / "openapi.yaml").read_text())
    assert committed == description, "run `make docs`"


def test_every_address_is_described(description: Any) -> None:
    assert len(description["paths"]) == len(urlpatterns) - 1
    for path in description["paths"].values():
        for operation in path.values():
            assert operation["operationId"]
            assert operation["description"]


def test_every_change_needs_the_role_that_its_description_names(
    description: Any, submitter: Caller
) -> None:
    """`(operators)` in a description: `submitter` is not enough. Signed requests need no token."""
    reader, unguarded = make_caller("otto"), []
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            if method == "get" or {"token": []} not in operation.get("security", []):
                continue
            address = re.sub(r"\{(\w+)\}", lambda name: SAMPLES[name[1]], path)
            refused = [reader, submitter] if "(operators)" in operation["description"] else [reader]
            for caller in refused:
                answer = caller.send(method.upper(), address.removeprefix("/api/v1"))
                if answer.status != 403:
                    unguarded.append(f"{operation['operationId']}: {answer.status}")
    assert unguarded == []


@pytest.mark.django_db(transaction=True)
def test_no_operation_of_the_api_answers_without_a_token() -> None:
    """Requests of cells without a signature, and links, included."""
    described, found = yaml.safe_load((ROOT / "docs" / "openapi.yaml").read_text()), {}
    for path, operations in described["paths"].items():
        address = re.sub(r"\{(\w+)\}", lambda name: SAMPLES.get(name[1], "1"), path)
        for method in operations:
            answer = Client().generic(method.upper(), address)
            found[f"{method} {address}"] = answer.status_code
    assert len(found) > 60
    links = {name for name in found if "/store/" in name}  # refused without their signature
    assert {found[name] for name in links} == {403}
    assert {name: found[name] for name in found.keys() - links if found[name] != 401} == {}


PUBLIC = {"healthz", "readyz", "api/schema/", "api/docs/", "admin/login/"}


@pytest.mark.django_db(transaction=True)
def test_only_listed_pages_answer_without_a_token() -> None:
    """The first path leads to the admin; its pages, and those of the account, have other tests."""
    tested = {"", "metrics", "api/v1/", "account/", "admin/"}
    tested |= {"admin/password_change/", "admin/search/"}
    assert {str(known.pattern) for known in root_patterns} == PUBLIC | tested
    for path in PUBLIC:
        assert Client().get(f"/{path}").status_code == (503 if path == "readyz" else 200)
    refused = {"": 302, "metrics": 401, "admin/password_change/": 302, "admin/search/": 302}
    for path, status in refused.items():
        answer = Client(REMOTE_ADDR="203.0.113.7").get(f"/{path}")
        assert (answer.status_code, b"cell" in answer.content) == (status, False)


def test_every_request_may_meet_a_database_that_does_not_respond(
    description: Any, submitter: Caller
) -> None:
    def fail(*_: Any) -> Any:
        raise OperationalError("the connection is closed")

    with connection.execute_wrapper(fail):
        assert submitter.get("/whoami").status == 503
    operations = [found for path in description["paths"].values() for found in path.values()]
    assert [found["operationId"] for found in operations if "503" not in found["responses"]] == []


def be_idle_in_a_transaction() -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 1")
        # The server ends the session, which makes its socket readable.
        assert select.select([connection.connection.fileno()], [], [], 30)[0]
        cursor.execute("SELECT 1")


@pytest.mark.django_db(transaction=True)
def test_request_whose_transaction_was_ended_for_idleness_can_be_repeated(
    submitter: Caller,
) -> None:
    with pytest.raises(InternalError) as ended:
        be_idle_in_a_transaction()

    def fail(*_: Any) -> Any:
        raise ended.value

    with connection.execute_wrapper(fail):
        answer = submitter.get("/whoami")
    assert (answer.status, answer.headers["Retry-After"]) == (503, "1")


def test_every_schema_reference_resolves(description: Any) -> None:
    schemas = description["components"]["schemas"]

    def visit(value: Any) -> None:
        if isinstance(value, dict):
            target = value.get("$ref")
            if isinstance(target, str):
                assert target.removeprefix("#/components/schemas/") in schemas
            for inner in value.values():
                visit(inner)
        elif isinstance(value, list):
            for inner in value:
                visit(inner)

    visit(description)


def test_job_schemas_match_the_model(description: Any) -> None:
    described = description["components"]["schemas"]
    for name, schema in json_schema()["$defs"].items():
        assert set(described[name].get("properties", {})) == set(schema.get("properties", {}))


def test_the_documentation_is_served_without_the_internet(db: None) -> None:
    page = Client().get("/api/docs/")
    assert page.status_code == 200
    assert b"//cdn" not in page.content
    assert b"/static/drf_spectacular_sidecar/" in page.content
    assert get_resolver().resolve("/api/schema/")


def test_the_served_description_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request needs no token, and building it takes a third of a second."""
    built = []

    class Generator(served.Description.generator_class):  # type: ignore[misc, name-defined]
        def get_schema(self, *args: Any, **kwargs: Any) -> Any:
            built.append(1)
            return super().get_schema(*args, **kwargs)

    monkeypatch.setattr(served.Description, "generator_class", Generator)
    monkeypatch.setattr(served, "_render", lru_cache(served._render.__wrapped__))
    pages = [Client().get("/api/schema/") for _ in range(3)]
    assert len(built) == 1
    committed = yaml.safe_load((ROOT / "docs" / "openapi.yaml").read_text())
    assert [yaml.safe_load(page.content) for page in pages] == [committed] * 3
    found = Client().get("/api/schema/?format=json")
    assert found["Content-Type"].startswith("application/vnd.oai.openapi+json")
    assert found.json() == committed


def test_an_unchanged_description_is_not_sent_again() -> None:
    page = Client().get("/api/schema/")
    again = Client().get("/api/schema/", headers={"If-None-Match": page["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    other = Client().get("/api/schema/", headers={"If-None-Match": '"other"'})
    assert other.status_code == 200


@pytest.mark.parametrize("path", ["/api/schema/", "/api/docs/"])
def test_no_password_is_checked_for_public_pages(path: str) -> None:
    """A wrong one costs a third of a second, and could be tried without limit."""
    basic = base64.b64encode(b"admin:wrong").decode()
    page = Client().get(path, headers={"Authorization": f"Basic {basic}"})
    assert page.status_code == 200
