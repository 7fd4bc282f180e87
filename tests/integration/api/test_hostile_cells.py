"""Signed requests of a cell that an attacker controls: other work is out of reach, bytes are bytes.

The cell has its own key and an attempt of the project `default`; its victim is an attempt of
another cell in the project `lab`.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote
from uuid import uuid4

import pytest

from controlplane import clock
from controlplane.contract.wire import keys
from controlplane.domain.roles import Role
from controlplane.models import Attempt, Cell, Domain, Project, Task
from controlplane.queries.attempts.group_specs import links_at
from controlplane.queries.cells.keys import key_of
from tests.integration.api.conftest import Answer, Caller, make_caller
from tests.integration.api.test_keys_of_cells import FILE, REQUESTS
from tests.integration.api.test_reading import place, submit
from tests.integration.api.test_walls import ROUTES, make_exec_session

INPUT = {"path": "/in", "content": "an input of the lab"}
DIGEST = hashlib.sha256(b"an input of the lab").hexdigest()


@dataclass
class Intruder:
    """A cell with its key, and what it attacks."""

    cell: Cell
    own: Attempt
    victim: Attempt
    reader: Caller

    def send(self, method: str, path: str, content: bytes = b"", **changed: str) -> Answer:
        """Send a request with a valid signature; `changed`: values of other headers."""
        at = str(int(clock.now().timestamp()))
        text = f"{self.cell.name}\n{at}\n/api/v1{path}\n{hashlib.sha256(content).hexdigest()}"
        headers = {
            "X_Cellrun_Cell": self.cell.name,
            "X_Cellrun_Time": at,
            "X_Cellrun_Mac": keys.sign(keys.mac_key(key_of(self.cell), keys.UPLOAD), text),
        }
        return Caller(None).send(method, path, content, **headers | changed)


@pytest.fixture
def intruder(submitter: Caller, make_cell: Callable[..., Cell]) -> Intruder:
    Project.objects.create(domain=Domain.objects.get(), name="lab")
    owner = make_caller("owner", Role.SUBMITTER, project="lab")
    job = submit(owner, project="lab", inputs=[INPUT])
    victim = place(Task.objects.get(job_id=job), make_cell("cell-1"))
    cell = make_cell("cell-2")
    own = place(Task.objects.get(job_id=submit(submitter)), cell)
    return Intruder(cell, own, victim, owner)


@pytest.mark.parametrize(("method", "path"), REQUESTS)
def test_attempt_of_another_cell_does_not_exist_for_a_cell(
    intruder: Intruder, method: str, path: str
) -> None:
    """The answer is that for an attempt that does not exist, and nothing is stored."""
    content = REQUESTS[method, path].encode()
    # The same request about its own attempt is accepted, except that it is not one of a gang.
    before = 404 if path == "gang" else 200
    assert intruder.send(method, f"/attempts/{intruder.own.uid}/{path}", content).status == before
    unknown = uuid4()
    hidden = intruder.send(method, f"/attempts/{intruder.victim.uid}/{path}", content)
    missing = intruder.send(method, f"/attempts/{unknown}/{path}", content)
    assert (hidden.status, missing.status) == (404, 404)
    uid = str(intruder.victim.uid)
    assert hidden.json["detail"].replace(uid, str(unknown)) == missing.json["detail"]
    assert intruder.reader.get(f"/attempts/{uid}/logs").content == b""
    assert intruder.reader.get(f"/attempts/{uid}/artifacts").json["results"] == []


def test_signature_of_a_cell_opens_no_route_of_users(intruder: Intruder) -> None:
    victim = intruder.victim
    ids = {"job": victim.job_id, "task": victim.task_id, "uid": victim.uid}
    ids |= {"alert": 1, "callback": 1, "operation": 1, "exec_session": make_exec_session(victim).pk}
    found = {}
    for method, described in ROUTES:
        path = ROUTES[method, described][1].format(**ids, group=victim.group_id, token=1)
        answer = intruder.send(method.upper(), path)
        assert b"lab" not in answer.content.replace(path.encode(), b""), path
        found[method, path] = answer.status
    assert len(found) == len(ROUTES)
    # This request names attempts in its body, and has none here.
    assert found.pop(("post", "/logs:batch")) == 400
    assert {item: status for item, status in found.items() if status not in (401, 403, 404)} == {}


@pytest.mark.parametrize("kind", ["inputs", "results", "outputs", "artifacts"])
def test_link_to_files_of_another_group_is_refused(intruder: Intruder, kind: str) -> None:
    """Without a link, with the link of the victim, and with one's own link for another path."""
    victim, own = intruder.victim.group_id, intruder.own.group_id
    paths = {
        "inputs": f"/store/inputs/{DIGEST}",
        "results": f"/store/results/{victim}",
        "outputs": f"/store/outputs/{victim}/model",
        "artifacts": f"/store/artifacts/{intruder.victim.uid}/model",
    }
    path, link = paths[kind], links_at(clock.now())
    stolen = link(victim, f"/api/v1{path}").partition("?")[2]
    elsewhere = link(own, f"/api/v1/store/results/{own}").partition("?")[2]
    assert intruder.send("GET", f"/store/results/{own}?{elsewhere}").status == 200
    assert intruder.send("GET", path).status == 403
    assert intruder.send("GET", f"{path}?{elsewhere}").status == 403
    forged = stolen.replace(f"group={victim}", f"group={own}")
    assert forged != stolen
    assert intruder.send("GET", f"{path}?{forged}").status == 403
    assert intruder.send("GET", f"{path}?{stolen}").status == 401


ODD_TEXTS = (
    "",
    "%00",
    "%ff%fe",
    "%ED%A0%80",
    "..",
    "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
    "a%2f..%2f..%2fb",
    "%2fetc%2fpasswd",
    "a%0d%0aX-Injected:%201",
    "%1b%5d52;c;eA==%07",
    "-1",
    "1.5",
    "1e9",
    str(2**63),
    "9" * 1000,
    "%D9%A1",
    "a" * 5000,
    quote("💣" * 300),
)
ODD_PATHS = (
    "/attempts/{uid}/logs/{odd}?offset=0",
    "/attempts/{uid}/logs/stdout?offset={odd}",
    "/attempts/{uid}/logs/stdout?offset=0&{odd}={odd}",
    f"/attempts/{{uid}}/artifacts/{{odd}}?offset=0&{FILE}",
    f"/attempts/{{uid}}/artifacts/a?offset={{odd}}&{FILE}",
    "/attempts/{uid}/artifacts/a?offset=0&size={odd}&sha256=" + "0" * 64,
    "/attempts/{uid}/artifacts/a?offset=0&size=1&sha256={odd}",
    "/attempts/{odd}/briefing",
    "/attempts/{uid}/briefing?{odd}",
    "/attempts/{uid}/gang?{odd}={odd}",
    "/store/inputs/{odd}?group={odd}&expires={odd}&signature={odd}",
    "/store/results/{odd}?group={odd}&expires={odd}&signature={odd}",
    "/store/outputs/1/{odd}?group={odd}&expires={odd}&signature={odd}",
    "/store/artifacts/{uid}/{odd}?expires={odd}&signature={odd}",
)
ODD_BODIES = (b"", bytes(range(256)) * 64, b"[" * 100_000, b"\x1f\x8b\x08" + b"\x00" * 100)


@pytest.mark.parametrize("path", ODD_PATHS)
def test_odd_values_in_a_signed_request_are_no_server_error(intruder: Intruder, path: str) -> None:
    for number, odd in enumerate(ODD_TEXTS):
        for method in ("GET", "POST", "PUT"):
            target = path.format(uid=intruder.own.uid, odd=odd)
            answer = intruder.send(method, target, ODD_BODIES[number % len(ODD_BODIES)])
            assert answer.status < 500, (method, target, answer)
            assert "X-Injected" not in answer.headers
            assert b"root:" not in answer.content


ODD_HEADERS = ("", "\x00", "\xff", "é" * 64, "0" * 64, "9" * 13, "-1", "1e9", "\t", "x" * 10_000)


@pytest.mark.parametrize("header", ["X_Cellrun_Cell", "X_Cellrun_Time", "X_Cellrun_Mac"])
def test_odd_values_in_the_headers_of_a_signature_are_refused(
    intruder: Intruder, header: str
) -> None:
    group = intruder.own.group_id
    path = f"/store/results/{group}"
    query = links_at(clock.now())(group, f"/api/v1{path}").partition("?")[2]
    requests = [
        ("POST", f"/attempts/{intruder.own.uid}/briefing"),
        ("PUT", f"/attempts/{intruder.own.uid}/logs/stdout?offset=0"),
        ("POST", "/logs:batch"),
        ("GET", f"{path}?{query}"),
    ]
    for method, path in requests:
        content = b"[]\n" if path == "/logs:batch" else b""
        assert intruder.send(method, path, content).status == 200
        for odd in ODD_HEADERS:
            assert intruder.send(method, path, content, **{header: odd}).status == 401, (path, odd)
