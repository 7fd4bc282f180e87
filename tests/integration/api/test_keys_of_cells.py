"""Requests of a cell whose key is revoked or renewed are refused, by each endpoint for cells."""

import hashlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from django.core.management import call_command

from controlplane import clock
from controlplane.api.agents.attempt_requests import CellRequests
from controlplane.api.urls import urlpatterns
from controlplane.api.work.attempts import AttemptArtifacts, LogUploads
from controlplane.commands.cells.operate import enroll_cell, revoke_cell
from controlplane.commands.cells.rotation import complete_rotation, rotate_key
from controlplane.contract.wire import keys
from controlplane.domain.cells.keys import CellAddress
from controlplane.domain.cells.sealing import NONCE_BYTES
from controlplane.models import Cell, Task
from controlplane.queries.cells.keys import find_keys, key_of, load_addresses
from tests.integration.api.conftest import Answer, Caller, check_described
from tests.integration.api.test_reading import place, submit

FILE = f"size=1&sha256={hashlib.sha256(b'x').hexdigest()}"
REQUESTS = {
    ("POST", "briefing"): "",
    ("POST", "gang"): "",
    ("PUT", "logs/stdout?offset=0"): "x",
    ("POST", f"artifacts/a?{FILE}"): "",
    ("PUT", f"artifacts/a?offset=0&{FILE}"): "x",
}


def send(key: bytes, method: str, path: str, content: bytes) -> Answer:
    at = str(int(clock.now().timestamp()))
    text = f"cell-1\n{at}\n/api/v1{path}\n{hashlib.sha256(content).hexdigest()}"
    headers = {
        "X-Cellrun-Cell": "cell-1",
        "X-Cellrun-Time": at,
        "X-Cellrun-Mac": keys.sign(keys.mac_key(key, keys.UPLOAD), text),
    }
    return Caller(None).send(method, path, content, **headers)


def test_every_endpoint_for_cells_is_requested_here() -> None:
    views = (CellRequests, AttemptArtifacts, LogUploads)
    found = [item for item in urlpatterns if getattr(item.callback, "cls", None) in views]
    parts = {str(item.pattern).split("/")[2] for item in found}
    assert parts == {path.split("/")[0] for _, path in REQUESTS}


@pytest.mark.parametrize("invalid", ["revoked", "renewed"])
@pytest.mark.parametrize(("method", "path"), REQUESTS)
def test_request_with_an_invalid_key_is_refused(
    submitter: Caller, make_cell: Callable[..., Cell], method: str, path: str, invalid: str
) -> None:
    submit(submitter)
    cell = make_cell()
    attempt = place(Task.objects.get(), cell)
    key, content = key_of(cell), REQUESTS[method, path].encode()
    url = f"/attempts/{attempt.uid}/{path}"
    # The endpoint accepts the signature before: this attempt is not one of a gang.
    before = 404 if path == "gang" else 200
    assert send(key, method, url, content).status == before
    if invalid == "revoked":
        revoke_cell(name="cell-1", actor="op", now=clock.now())
    else:
        enroll_cell(name="cell-1", renew=True, actor="op", now=clock.now())
    assert send(key, method, url, content).status == 401


def next_key_of(cell: Cell) -> bytes:
    now = clock.now()
    text, _ = rotate_key(name=cell.name, until=now + timedelta(days=1), actor="op", now=now)
    return keys.decode_key(text)


@pytest.mark.parametrize(("method", "path"), REQUESTS)
def test_request_with_either_key_of_a_rotation_is_accepted_until_the_switch(
    submitter: Caller, make_cell: Callable[..., Cell], method: str, path: str
) -> None:
    submit(submitter)
    cell = make_cell()
    attempt = place(Task.objects.get(), cell)
    key, content = key_of(cell), REQUESTS[method, path].encode()
    following = next_key_of(cell)
    url = f"/attempts/{attempt.uid}/{path}"
    expected = 404 if path == "gang" else 200
    assert send(key, method, url, content).status == expected
    # Repeated: the output and the artifact are stored already.
    assert send(following, method, url, content).status in (expected, 409)
    complete_rotation(CellAddress(cell.pk, cell.name, "i", following), now=clock.now())
    assert send(following, method, url, content).status in (expected, 409)
    assert send(key, method, url, content).status == 401


def test_launch_context_is_sealed_with_the_key_of_the_request(running: tuple[str, bytes]) -> None:
    path, key = running
    following = next_key_of(Cell.objects.get())
    for used, other in ((key, following), (following, key)):
        answer = send(used, "POST", path, b"")
        mac = answer.request_headers["X-Cellrun-Mac"]
        uid = path.split("/")[2]
        about = keys.about_answer(cell="cell-1", attempt=uid, endpoint="briefing", mac=mac).encode()
        nonce, sealed = answer.content[:NONCE_BYTES], answer.content[NONCE_BYTES:]
        assert ChaCha20Poly1305(keys.mac_key(used, keys.SEAL)).decrypt(nonce, sealed, about)
        with pytest.raises(InvalidTag):
            ChaCha20Poly1305(keys.mac_key(other, keys.SEAL)).decrypt(nonce, sealed, about)


def test_next_key_is_derived_from_the_present_secret_key(
    running: tuple[str, bytes], settings: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = running
    former = next_key_of(Cell.objects.get())
    rotate(settings)
    # Both keys of this rotation need the fallback, also when the cell has switched.
    complete_rotation(CellAddress(Cell.objects.get().pk, "cell-1", "i", former), now=clock.now())
    call_command("reseal_secrets")
    assert "FALLBACKS: cell-1" in capsys.readouterr().out
    following = next_key_of(Cell.objects.get())
    complete_rotation(CellAddress(Cell.objects.get().pk, "cell-1", "i", following), now=clock.now())
    settings.SECRET_KEY_FALLBACKS = []
    assert send(following, "POST", path, b"").status == 200
    call_command("reseal_secrets")
    assert "cell-1" not in capsys.readouterr().out


OTHER = "another key of more than 32 characters"


def rotate(settings: Any) -> None:
    """Set another CELLRUN_SECRET_KEY, with the present one as a fallback."""
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = OTHER


@pytest.fixture
def running(submitter: Caller, make_cell: Callable[..., Cell]) -> tuple[str, bytes]:
    """The path of a request of a cell with an attempt, and the key of the cell."""
    submit(submitter)
    cell = make_cell()
    attempt = place(Task.objects.get(), cell)
    return f"/attempts/{attempt.uid}/briefing", key_of(cell)


def test_key_of_a_cell_survives_a_new_secret_key(
    running: tuple[str, bytes], settings: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path, key = running
    rotate(settings)
    assert send(key, "POST", path, b"").status == 200
    assert enroll_cell(name="cell-1", now=clock.now()) == keys.encode_key(key)
    call_command("reseal_secrets")
    assert "the keys of 1 cells need CELLRUN_SECRET_KEY_FALLBACKS: cell-1" in (
        capsys.readouterr().out
    )


def test_key_of_a_cell_ends_with_the_secret_key_that_it_is_derived_from(
    running: tuple[str, bytes], settings: Any
) -> None:
    path, key = running
    rotate(settings)
    settings.SECRET_KEY_FALLBACKS = []
    assert send(key, "POST", path, b"").status == 401


def test_renewed_key_is_derived_from_the_present_secret_key(
    running: tuple[str, bytes], settings: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    path, key = running
    rotate(settings)
    renewed = keys.decode_key(enroll_cell(name="cell-1", renew=True, actor="op", now=clock.now()))
    settings.SECRET_KEY_FALLBACKS = []
    assert send(renewed, "POST", path, b"").status == 200
    assert send(key, "POST", path, b"").status == 401
    call_command("reseal_secrets")
    assert "cell-1" not in capsys.readouterr().out


def test_inbox_and_orders_use_the_key_of_the_enrolment(
    running: tuple[str, bytes], settings: Any
) -> None:
    _, key = running
    Cell.objects.update(incarnation="i")
    cell_id = Cell.objects.get().pk
    rotate(settings)
    assert load_addresses([cell_id])[cell_id].key == key
    assert find_keys(["cell-1"]) == {"cell-1": (cell_id, {key: Cell.objects.get().key_salt})}


def test_cell_document_has_the_time_of_the_revocation(
    submitter: Caller, make_cell: Callable[..., Cell]
) -> None:
    make_cell()
    assert submitter.get("/cells/cell-1").json["revoked_at"] is None
    revoke_cell(name="cell-1", actor="op", reason="lost", now=clock.now())
    document = submitter.get("/cells/cell-1").json
    check_described("Cell", document)
    assert document["revoked_at"] is not None
    assert document["state_reason"] == "revoked by op: lost"
