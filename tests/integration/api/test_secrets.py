"""Secrets over the API: written and used, and shown only to the cell that runs the task."""

import base64
import hashlib
import json
import logging
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from django.core.management import CommandError, call_command

from controlplane import clock
from controlplane.contract.messages.launch_context import LaunchContext, Registry
from controlplane.contract.wire import keys
from controlplane.domain.cells.sealing import NotOpened, rest_key, unseal
from controlplane.domain.jobs.secrets import about_secret
from controlplane.domain.roles import Role
from controlplane.models import Attempt, Cell, Domain, Job, Project, Secret, Task
from controlplane.queries.cells.keys import key_of
from tests.harness.members import admit
from tests.integration.api.conftest import Answer, Caller, check_described, make_caller
from tests.integration.api.test_reading import JOB, pages, place, submit

VALUE = "hunter2-hunter2"
SHORT = {"name": "token", "env": "TOKEN"}


def put(caller: Caller, name: str = "token", body: Any = None, query: str = "") -> Answer:
    return caller.put(f"/secrets/{name}{query}", body or {"value": VALUE})


def request(cell: Cell, uid: object) -> Answer:
    """Request a launch context as a cell does."""
    path, at = f"/api/v1/attempts/{uid}/briefing", str(int(clock.now().timestamp()))
    text = f"{cell.name}\n{at}\n{path}\n{hashlib.sha256(b'').hexdigest()}"
    headers = {
        "X-Cellrun-Cell": cell.name,
        "X-Cellrun-Time": at,
        "X-Cellrun-Mac": keys.sign(keys.mac_key(key_of(cell), keys.UPLOAD), text),
    }
    return Caller(None).send("POST", path.removeprefix("/api/v1"), b"", **headers)


def briefed(cell: Cell, uid: object) -> LaunchContext:
    answer = request(cell, uid)
    assert answer.status == 200, answer.content
    opener = ChaCha20Poly1305(keys.mac_key(key_of(cell), keys.SEAL))
    about = keys.about_answer(
        cell=cell.name,
        attempt=str(uid),
        endpoint="briefing",
        mac=answer.request_headers["X-Cellrun-Mac"],
    ).encode()
    return LaunchContext.read(
        json.loads(opener.decrypt(answer.content[:12], answer.content[12:], about))
    )


@pytest.fixture
def run(manager: Caller, make_cell: Callable[..., Cell]) -> Callable[..., tuple[Cell, Attempt]]:
    """Submits a job and places its task."""

    def run(**fields: Any) -> tuple[Cell, Attempt]:
        job_id = submit(manager, **fields)
        cell = Cell.objects.first() or make_cell()
        return cell, place(Task.objects.get(job_id=job_id), cell)

    return run


def test_secret_documents_omit_the_value(manager: Caller) -> None:
    first = put(manager)
    assert first.status == 201
    check_described("StoredSecret", first.json)
    shown = {name: first.json[name] for name in ("name", "domain", "project", "size", "version")}
    assert shown == {
        "name": "token",
        "domain": "default",
        "project": "default",
        "size": len(VALUE),
        "version": 1,
    }
    second = put(make_caller("bob", Role.MANAGER), body={"value_base64": "AP8="})
    assert (second.status, second.json["version"], second.json["size"]) == (200, 2, 2)
    assert (first.json["written_by"], second.json["written_by"]) == ("mia", "bob")
    assert second.json["created_at"] == first.json["created_at"] < second.json["updated_at"]
    assert manager.get("/secrets/token").json == second.json
    assert manager.get("/secrets").json["results"] == [second.json]
    for answer in (first, second, manager.get("/secrets/token"), manager.get("/secrets")):
        assert VALUE.encode() not in answer.content
        assert b"AP8" not in answer.content


def test_value_is_sealed_for_its_own_row(manager: Caller, settings: Any) -> None:
    put(manager)
    put(manager, "other")
    row, other = Secret.objects.order_by("-name")
    sealed = bytes(row.sealed)
    assert VALUE.encode() not in sealed
    assert sealed[:12] != bytes(other.sealed)[:12], "a nonce came twice"
    about = f"secret {row.project_id} token"
    assert unseal(rest_key(settings.SECRET_KEY), sealed, about=about) == VALUE.encode()
    for key, name in ((rest_key("x" * 40), about), (rest_key(settings.SECRET_KEY), about + "2")):
        with pytest.raises(NotOpened):
            unseal(key, sealed, about=name)
    put(manager)
    row.refresh_from_db()
    assert bytes(row.sealed) != sealed
    assert VALUE not in repr(row) + str(row)


@pytest.mark.parametrize(
    ("body", "field", "text"),
    [
        ({}, "", "must have exactly one of value, value_base64 and registry"),
        ({"value": "hush", "value_base64": ""}, "", "must have exactly one of value, value_base64"),
        ({"value": 471147}, "value", "must be a text"),
        ({"value": ["hush"]}, "value", "must be a text"),
        ({"value": "hush" * 16385}, "value", "must have at most 65536 characters"),
        ({"value": "é" * 40000}, "", "the value has more than 65536 bytes"),
        ({"value": "hush\0"}, "value", "a text contains a NUL character"),
        ({"value_base64": "hush!"}, "", "value_base64 is not base64"),
        ({"value_base64": "é"}, "", "value_base64 is not base64"),
        ({"registry": "hush"}, "registry", "must be a mapping"),
        ({"registry": {"username": "hush"}}, "registry.password", "is required"),
        ({"registry": {"username": "", "password": "hush"}}, "registry.username", "must have at"),
        ({"registry": {"username": "a", "password": 471147}}, "registry.password", "must be a"),
        (
            {"registry": {"username": "a", "password": "b", "server": "https://hush/v1"}},
            "registry.server",
            "must be host or host:port of a registry, as in the names of its images",
        ),
        (
            {"registry": {"username": "a", "password": "b", "server": "hush"}},
            "registry.server",
            "must be host or host:port of a registry",
        ),
        (
            {"registry": {"username": "a", "password": "b", "server": "h.ush/" + "h" * 260}},
            "registry.server",
            "must have at most 255 characters",
        ),
        ({"hush": 471147}, "", "unknown field (known: value, value_base64, registry)"),
        ({"value": "a", "registry": {"hush": 1}}, "", None),
        (["hush"], "", "must be a mapping"),
    ],
)
def test_invalid_secret_is_refused_without_echoing_the_value(
    manager: Caller, body: Any, field: str, text: str | None
) -> None:
    answer = manager.put("/secrets/token", body)
    assert answer.status == 422
    if text is not None:
        assert list(answer.faults) == [field]
        assert answer.faults[field].startswith(text)
    assert b"hush" not in answer.content
    assert b"471147" not in answer.content
    assert not Secret.objects.exists()


@pytest.mark.parametrize(
    "text", ["*hush", "!hush x", "value: {a: hush", "{hush: 1, hush: 2}", "a: hush: hush", "&hush"]
)
@pytest.mark.parametrize("language", ["json", "yaml"])
def test_unparsable_body_is_not_echoed(manager: Caller, text: str, language: str) -> None:
    content_type = f"application/{language}"
    answer = manager.send("PUT", "/secrets/token", text.encode(), content_type=content_type)
    assert answer.status in (400, 422)
    assert b"hush" not in answer.content


def test_values_are_not_logged(
    manager: Caller, caplog: pytest.LogCaptureFixture, settings: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    settings.DEBUG = True
    put(manager)
    put(manager, body={"value": VALUE, "x": VALUE})
    put(manager, "%00")
    assert VALUE not in caplog.text
    assert base64.b64encode(VALUE.encode()).decode() not in caplog.text


def test_largest_and_empty_values_are_accepted(
    manager: Caller, run: Callable[..., tuple[Cell, Attempt]]
) -> None:
    large = bytes(range(256)) * 256
    put(manager, "large", {"value_base64": base64.b64encode(large).decode()})
    put(manager, "empty", {"value": ""})
    cell, attempt = run(secrets=[{"name": "large", "path": "/l"}, {"name": "empty", "env": "E"}])
    secrets = briefed(cell, attempt.uid).secrets
    assert {name: base64.b64decode(value) for name, value in secrets.items()} == {
        "large": large,
        "empty": b"",
    }


def test_secrets_belong_to_one_project(manager: Caller) -> None:
    lab = Domain.objects.create(name="lab")
    Project.objects.create(domain=lab, name="genes")
    admit(manager.user, Role.MANAGER, domain="lab")
    there = "?domain=lab&project=genes"
    put(manager, "a")
    put(manager, "b", query=there)
    assert [item["name"] for item in manager.get("/secrets").json["results"]] == ["a"]
    assert [item["name"] for item in manager.get(f"/secrets{there}").json["results"]] == ["b"]
    assert manager.get(f"/secrets/b{there}").json["project"] == "genes"
    for answer in (
        manager.get("/secrets/b"),
        manager.get("/secrets?project=none"),
        put(manager, query="?project=none"),
        manager.send("DELETE", "/secrets/b"),
        manager.get("/secrets/B"),
    ):
        assert answer.status == 404
    assert manager.get("/secrets?user=ann").status == 400
    refused = manager.post("/jobs", {**JOB, "secrets": [{"name": "b", "env": "B"}]})
    assert refused.status == 422
    taken = {**JOB, "domain": "lab", "project": "genes", "secrets": [{"name": "b", "env": "B"}]}
    assert manager.post("/jobs", taken).status == 201


def test_secrets_are_listed_by_name_in_pages(manager: Caller) -> None:
    for name in ("c", "a", "b", "d.e"):
        put(manager, name)
    found = pages(manager, "/secrets?limit=3")
    assert [[item["name"] for item in page] for page in found] == [["a", "b", "c"], ["d.e"]]


def test_managers_write_and_delete_secrets_and_submitters_read_their_names(
    anonymous: Caller, manager: Caller
) -> None:
    viewer, submitter = make_caller("otto"), make_caller("sue", Role.SUBMITTER)
    assert put(anonymous).status == anonymous.get("/secrets/token").status == 401
    assert put(viewer).status == put(submitter).status == 403
    assert put(manager).status == 201
    assert submitter.get("/secrets/token").status == submitter.get("/secrets").status == 200
    assert viewer.get("/secrets/token").status == viewer.get("/secrets").status == 403
    for caller in (viewer, submitter):
        assert caller.send("DELETE", "/secrets/token").status == 403
    assert manager.send("DELETE", "/secrets/token").status == 204
    assert manager.send("DELETE", "/secrets/token").status == 404


def test_job_with_a_missing_secret_is_refused_unless_allowed(manager: Caller) -> None:
    spec = {**JOB, "secrets": [SHORT], "registry_secret": "hub"}
    refused = manager.post("/jobs", spec)
    assert refused.status == 422
    assert set(refused.faults) == {"secrets[0].name", "registry_secret"}
    assert refused.faults["registry_secret"] == (
        "the project default/default has no secret hub: a manager of the project must write it"
    )
    group = {key: value for key, value in spec.items() if key != "name"}
    refused = manager.post("/jobs", {"name": "two", "groups": [{**group, "name": "g"}]})
    assert set(refused.faults) == {"groups[0].secrets[0].name", "groups[0].registry_secret"}
    assert manager.post("/jobs:dry-run", spec).status == 422
    assert manager.post("/jobs", {**spec, "allow_unsatisfiable": True}).status == 201
    put(manager)
    put(manager, "hub", {"registry": {"username": "ann", "password": VALUE}})
    answer = manager.post("/jobs", spec)
    assert answer.status == 201
    assert VALUE.encode() not in answer.content
    assert VALUE not in str(list(Job.objects.values()))


def test_login_is_refused_for_images_of_another_registry(manager: Caller) -> None:
    login = {"username": "ann", "password": VALUE}
    spec = {**JOB, "image": "registry.example.com/team/tool:1", "registry_secret": "hub"}
    assert put(manager, "hub", {"registry": login}).json["registry_server"] == "docker.io"
    for answer in (manager.post("/jobs", spec), manager.post("/jobs:dry-run", spec)):
        assert answer.status == 422
        assert answer.faults["registry_secret"] == (
            "the secret hub is a login to docker.io, but registry.example.com/team/tool:1 is an"
            " image of registry.example.com"
        )
    assert manager.post("/jobs", {**spec, "image": "team/tool:1"}).status == 201
    shown = put(manager, "hub", {"registry": {**login, "server": "Registry.Example.com"}}).json
    assert shown["registry_server"] == "registry.example.com"
    assert manager.get("/secrets/hub").json == shown
    assert manager.post("/jobs", spec).status == 201
    assert "registry_secret" in manager.post("/jobs", {**spec, "image": "team/tool:1"}).faults
    assert put(manager, "hub").json["registry_server"] == "", "no longer a login"


def test_login_written_without_a_server_is_for_docker_hub_only(manager: Caller) -> None:
    text = json.dumps({"username": "ann", "password": VALUE})
    assert put(manager, "hub", {"value": text}).json["registry_server"] == "docker.io"
    Secret.objects.update(registry_server="")  # as a migrated row
    image = "registry.example.com/team/tool:1"
    refused = manager.post("/jobs", {**JOB, "image": image, "registry_secret": "hub"})
    assert "has no server" in refused.faults["registry_secret"]
    assert manager.post("/jobs", {**JOB, "registry_secret": "hub"}).status == 201


def test_cell_receives_only_the_secrets_named_by_the_task(
    manager: Caller, run: Callable[..., tuple[Cell, Attempt]]
) -> None:
    for name in ("token", "key", "other"):
        put(manager, name, {"value": f"{VALUE}-{name}"})
    login = {"username": "ann", "password": "pass", "server": "registry.example.com:5000"}
    put(manager, "hub", {"registry": login})
    uses = [SHORT, {"name": "token", "path": "/run/t"}, {"name": "key", "path": "/run/k"}]
    image = "registry.example.com:5000/tool"
    cell, attempt = run(secrets=uses, registry_secret="hub", image=image)
    assert VALUE.encode() not in request(cell, attempt.uid).content
    context = briefed(cell, attempt.uid)
    assert {name: base64.b64decode(value).decode() for name, value in context.secrets.items()} == {
        "token": f"{VALUE}-token",
        "key": f"{VALUE}-key",
    }
    assert context.registry == Registry("ann", "pass", "registry.example.com:5000")
    assert VALUE not in repr(context)
    assert "pass" not in repr(context.registry)


def test_cell_receives_missing_and_unusable_secret_names(
    manager: Caller, run: Callable[..., tuple[Cell, Attempt]]
) -> None:
    put(manager)
    put(manager, "key")
    both = [SHORT, {"name": "key", "path": "/key"}]
    cell, attempt = run(secrets=both, registry_secret="token")
    assert briefed(cell, attempt.uid).unusable == ("token",)
    manager.send("DELETE", "/secrets/key")
    context = briefed(cell, attempt.uid)
    assert (context.missing, context.secrets) == (("key",), {})


@pytest.mark.parametrize(
    "text", ["[" * 60000, "7", '{"username": "a"}', '{"username": "a", "password": 7}', "\0"]
)
def test_registry_secret_that_is_no_login_is_reported_unusable(
    manager: Caller, run: Callable[..., tuple[Cell, Attempt]], text: str
) -> None:
    put(manager, "hub", {"value_base64": base64.b64encode(text.encode()).decode()})
    cell, attempt = run(registry_secret="hub")
    context = briefed(cell, attempt.uid)
    assert (context.registry, context.unusable) == (None, ("hub",))


def test_changed_secret_key_needs_the_old_key_as_fallback(
    manager: Caller, run: Callable[..., tuple[Cell, Attempt]], settings: Any
) -> None:
    put(manager)
    cell, attempt = run(secrets=[SHORT])
    old, settings.SECRET_KEY = settings.SECRET_KEY, "another key of more than 32 characters"
    answer = request(cell, attempt.uid)
    assert answer.status == 409
    assert answer.json["detail"].startswith("the secret token cannot be opened")
    with pytest.raises(CommandError, match="the secret token cannot be opened"):
        call_command("reseal_secrets")

    settings.SECRET_KEY_FALLBACKS = [old]
    assert base64.b64decode(briefed(cell, attempt.uid).secrets["token"]) == VALUE.encode()
    call_command("reseal_secrets")
    settings.SECRET_KEY_FALLBACKS = []
    assert base64.b64decode(briefed(cell, attempt.uid).secrets["token"]) == VALUE.encode()
    assert Secret.objects.get().version == 1


def test_sealing_key_replaces_the_secret_key_for_stored_secrets(
    manager: Caller, run: Callable[..., tuple[Cell, Attempt]], settings: Any
) -> None:
    put(manager)
    cell, attempt = run(secrets=[{"name": "token", "env": "TOKEN"}])
    own = "the sealing key, of more than 32 characters"
    settings.CELLRUN = settings.CELLRUN.model_copy(update={"sealing_key": own})
    assert base64.b64decode(briefed(cell, attempt.uid).secrets["token"]) == VALUE.encode()
    call_command("reseal_secrets")
    secret = Secret.objects.get()
    about = about_secret(secret.project_id, "token")
    assert unseal(rest_key(own), bytes(secret.sealed), about=about) == VALUE.encode()
    # A new sealing key opens what the former one sealed.
    changes = {"sealing_key": "n" * 40, "sealing_key_fallbacks": (own,)}
    settings.CELLRUN = settings.CELLRUN.model_copy(update=changes)
    assert base64.b64decode(briefed(cell, attempt.uid).secrets["token"]) == VALUE.encode()
    # So does an installation that returns to the key that is derived from its secret key.
    changes = {"sealing_key": "", "sealing_key_fallbacks": (own,)}
    settings.CELLRUN = settings.CELLRUN.model_copy(update=changes)
    call_command("reseal_secrets")
    sealed = bytes(Secret.objects.get().sealed)
    assert unseal(rest_key(settings.SECRET_KEY), sealed, about=about) == VALUE.encode()


def test_reseal_secrets_reseals_all_in_pages(
    manager: Caller,
    settings: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("controlplane.commands.tenancy.secrets.PAGE", 2)
    for number in range(4):
        put(manager, f"s{number}")
    old, settings.SECRET_KEY = settings.SECRET_KEY, "another key of more than 32 characters"
    settings.SECRET_KEY_FALLBACKS = ["neither of more than 32 characters", old]
    put(manager, "s5")
    call_command("reseal_secrets")
    call_command("reseal_secrets")
    assert capsys.readouterr().out == "4 secrets resealed\n0 secrets resealed\n"


def test_secret_keys_are_omitted_from_the_settings_repr(settings: Any) -> None:
    shown = repr(settings.CELLRUN.model_copy(update={"secret_key_fallbacks": (VALUE * 3,)}))
    assert VALUE not in shown
