"""Requests of a cell whose key is revoked or renewed are refused, by each endpoint for cells."""

import hashlib
from collections.abc import Callable

import pytest

from controlplane import clock
from controlplane.api.agents.attempt_requests import CellRequests
from controlplane.api.urls import urlpatterns
from controlplane.api.work.attempts import AttemptArtifacts, LogUploads
from controlplane.commands.cells.operate import enroll_cell, revoke_cell
from controlplane.contract.wire import keys
from controlplane.models import Cell, Task
from controlplane.queries.cells.keys import key_of
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
