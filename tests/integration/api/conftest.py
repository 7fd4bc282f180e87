"""A tenancy, people with tokens, and a caller of the API for each of them."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml
from django.test import Client
from jsonschema import Draft202012Validator

from controlplane import clock
from controlplane.commands.cells.operate import enroll_cell
from controlplane.commands.tenancy.accounts import create_default_tenancy, create_user
from controlplane.commands.tenancy.tokens import create_api_token
from controlplane.domain.roles import Role
from controlplane.models import Cell, Pool
from controlplane.outbox.wakes import take_wake
from tests.harness.members import admit


@dataclass
class Answer:
    """A response of the API, with the headers of its request."""

    status: int
    headers: Any
    content: bytes
    request_headers: dict[str, str]

    @property
    def json(self) -> Any:
        """The document."""
        return json.loads(self.content)

    @property
    def faults(self) -> dict[str, str]:
        """The faults of a problem document, by field."""
        assert self.headers["Content-Type"] == "application/problem+json"
        assert self.json["status"] == self.status
        return {item["field"]: item["detail"] for item in self.json.get("errors", [])}


class Caller:
    """Calls the API with a token."""

    def __init__(self, token: str | None, user: Any = None) -> None:
        self.user = user
        self._client = Client()
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}

    def get(self, path: str) -> Answer:
        """GET a path below /api/v1, or a whole address."""
        return self.send("GET", path)

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        """POST a document as JSON."""
        return self._send_document("POST", path, body, **headers)

    def put(self, path: str, body: Any = None, **headers: str) -> Answer:
        """PUT a document as JSON."""
        return self._send_document("PUT", path, body, **headers)

    def _send_document(self, method: str, path: str, body: Any, **headers: str) -> Answer:
        if body is None:
            return self.send(method, path, **headers)
        text = json.dumps(body).encode()
        return self.send(method, path, text, content_type="application/json", **headers)

    def send(
        self, method: str, path: str, content: bytes = b"", content_type: str = "", **headers: str
    ) -> Answer:
        """Send anything."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answer = self._client.generic(
            method,
            path if path.startswith("http") else f"/api/v1{path}",
            content,
            content_type=content_type or "application/octet-stream",
            headers={**self.headers, **named},
        )
        return Answer(answer.status_code, answer.headers, answer.getvalue(), named)


def check_described(name: str, document: Any) -> None:
    """Check a document of the API against the schema `name` of the committed description."""
    text = (Path(__file__).parents[3] / "docs" / "openapi.yaml").read_text()
    components = yaml.load(text, Loader=yaml.CSafeLoader)["components"]
    schema = {"$ref": f"#/components/schemas/{name}", "components": components}
    Draft202012Validator(schema).validate(document)


class Wakes:
    """What wakes placement, as it lies in Redis."""

    def __init__(self, url: str) -> None:
        self._redis = redis.Redis.from_url(url)
        self._redis.flushdb()

    def take(self) -> int:
        """How many wakes lie there; afterwards none does, and the next one is sent again."""
        take_wake("placement")
        found = self._redis.llen("placement")
        self._redis.delete("placement")
        return int(found)


@pytest.fixture
def wakes(settings: Any, worker_id: str) -> Wakes:
    """The wakes of this test alone: each of the processes that test has a Redis of its own."""
    number = int(worker_id.removeprefix("gw")) + 1 if worker_id.startswith("gw") else 1
    settings.CELERY_BROKER_URL = settings.CELLRUN.broker_url.rpartition("/")[0] + f"/{number}"
    return Wakes(settings.CELERY_BROKER_URL)


@pytest.fixture(autouse=True)
def tenancy(db: None, settings: Any, tmp_path: Path) -> None:
    """Domain, project and pool `default`, and a store of this test's own."""
    create_default_tenancy()
    change_setting(settings, artifact_root=tmp_path / "artifacts")


def change_setting(settings: Any, **values: Any) -> None:
    """Change some of the typed settings for this test."""
    settings.CELLRUN = settings.CELLRUN.model_copy(update=values)


def make_caller(name: str, role: Role = Role.VIEWER, *, project: str | None = None) -> Caller:
    """A new user with a token, and with the role on a project, or on the domain `default`."""
    user, _ = create_user(name=name, password=None, is_operator=role is Role.OPERATOR)
    if role is not Role.OPERATOR:
        admit(user, role, project)
    token = create_api_token(user=user, name="test", role=role, now=clock.now())
    return Caller(token, user)


def make_outsider(name: str) -> Caller:
    """A new user without a role, with a token of the role manager."""
    user, _ = create_user(name=name, password=None, is_operator=False)
    token = create_api_token(user=user, name="test", role=Role.MANAGER, now=clock.now())
    return Caller(token, user)


@pytest.fixture
def submitter() -> Caller:
    """Return a submitter of the project `default/default`."""
    return make_caller("ann", Role.SUBMITTER)


@pytest.fixture
def manager() -> Caller:
    """A manager of the project `default/default`."""
    return make_caller("mia", Role.MANAGER)


@pytest.fixture
def operator() -> Caller:
    """Return an operator."""
    return make_caller("olga", Role.OPERATOR)


@pytest.fixture
def anonymous() -> Caller:
    """Return a caller without a token."""
    return Caller(None)


@pytest.fixture
def make_cell() -> Callable[..., Cell]:
    """Enrolls a cell that reports this capacity."""

    def make(name: str = "cell-1", **capacity: int) -> Cell:
        enroll_cell(name=name, pool=Pool.objects.get().name, now=clock.now())
        cell = Cell.objects.get(name=name)
        cell.capacity = {"cpu_millis": 2000, "memory_mib": 2048, "disk_mib": 0, **capacity}
        cell.task_types = ["container", "process"]
        cell.save()
        return cell

    return make
