"""The gang endpoint: the members of a gang and their addresses, for its own cell alone."""

import hashlib
import json
import uuid
from collections.abc import Callable

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from controlplane import clock
from controlplane.contract.messages.gang import Gang, GangKey
from controlplane.contract.messages.launch_context import LaunchContext
from controlplane.contract.states import TaskState as S
from controlplane.contract.wire import keys
from controlplane.models import Attempt, Cell, Job, Task
from controlplane.queries.cells.keys import key_of
from tests.integration.api.conftest import Answer, Caller
from tests.integration.api.test_reading import place, submit

GANG = {
    "coscheduled": True,
    "groups": [
        {
            "name": "driver",
            "image": "busybox",
            "command": ["true"],
            "ports": ["ssh"],
        },
        {
            "name": "worker",
            "image": "busybox",
            "command": ["true"],
            "replicas": 3,
            "min_available": 2,
            "network": "default",
        },
    ],
}


def request(cell: Cell, uid: object, what: str = "gang") -> Answer:
    """POST as a cell does."""
    path = f"/api/v1/attempts/{uid}/{what}"
    at = str(int(clock.now().timestamp()))
    text = f"{cell.name}\n{at}\n{path}\n{hashlib.sha256(b'').hexdigest()}"
    headers = {
        "X-Cellrun-Cell": cell.name,
        "X-Cellrun-Time": at,
        "X-Cellrun-Mac": keys.sign(keys.mac_key(key_of(cell), keys.UPLOAD), text),
    }
    return Caller(None).send("POST", path.removeprefix("/api/v1"), **headers)


def opened(cell: Cell, uid: object, answer: Answer, what: str = "gang") -> object:
    """The answer as the cell reads it."""
    key = keys.mac_key(key_of(cell), keys.SEAL)
    about = keys.about_answer(
        cell=cell.name, attempt=str(uid), endpoint=what, mac=answer.request_headers["X-Cellrun-Mac"]
    ).encode()
    return json.loads(
        ChaCha20Poly1305(key).decrypt(answer.content[:12], answer.content[12:], about)
    )


def read_gang(cell: Cell, attempt: Attempt) -> Gang:
    answer = request(cell, attempt.uid)
    assert answer.status == 200
    return Gang.read(opened(cell, attempt.uid, answer))


def briefed(cell: Cell, attempt: Attempt) -> GangKey:
    answer = request(cell, attempt.uid, "briefing")
    assert answer.status == 200
    gang = Gang.read(LaunchContext.read(opened(cell, attempt.uid, answer, "briefing")).gang)
    assert gang.key is not None
    assert [member.rank for member in gang.members] == list(range(len(gang.members)))
    return gang.key


@pytest.fixture
def cell(make_cell: Callable[..., Cell]) -> Cell:
    return make_cell()


def tasks_of(job_id: int) -> list[Task]:
    """By rank."""
    return list(Task.objects.filter(job_id=job_id).order_by("group__position", "index"))


def test_job_shows_effective_networks_and_minima_of_its_groups(submitter: Caller) -> None:
    made = submitter.post("/jobs", {"name": "gang", **GANG}).json
    assert made["groups"] == [
        {"name": "driver", "tasks": 1, "min_available": 1, "network": "gang", "prepared": {}},
        {"name": "worker", "tasks": 3, "min_available": 2, "network": "default", "prepared": {}},
    ]
    assert submitter.get(f"/jobs/{made['id']}").json["groups"] == made["groups"]
    alone = {"name": "alone", "image": "busybox", "replicas": 2, "min_available": 1}
    plain = submitter.post("/jobs", alone).json
    assert plain["groups"] == [
        {"name": "main", "tasks": 2, "min_available": 1, "network": "default", "prepared": {}}
    ]
    listed = {job["id"]: job["groups"] for job in submitter.get("/jobs").json["results"]}
    assert listed == {made["id"]: made["groups"], plain["id"]: plain["groups"]}


def submit_gang(caller: Caller) -> list[Task]:
    answer = caller.post("/jobs", {"name": "gang", **GANG})
    assert answer.status == 201, answer.json
    return tasks_of(answer.json["id"])


def test_gang_members_are_listed_by_rank_with_state_cell_and_addresses(
    submitter: Caller, make_cell: Callable[..., Cell], cell: Cell
) -> None:
    other = make_cell("cell-2")
    driver, first, second, _ = submit_gang(submitter)
    attempt = place(driver, cell, state=S.BUILDING)
    place(first, other, details={"addresses": {"ssh": "10.0.0.2:4711"}})
    place(second, other, state=S.ASSIGNED)
    gang = read_gang(cell, attempt)
    assert gang.key is None
    assert [(m.rank, m.name, m.state, m.cell, dict(m.addresses)) for m in gang.members] == [
        (0, "driver-0", S.BUILDING, "cell-1", {}),
        (1, "worker-0", S.RUNNING, "cell-2", {"ssh": "10.0.0.2:4711"}),
        (2, "worker-1", S.ASSIGNED, "cell-2", {}),
        (3, "worker-2", S.PENDING, None, {}),
    ]
    shared, declined = gang.members[0].group, gang.members[1].group
    assert (shared.network, shared.ports, shared.task_type) == ("gang", ("ssh",), "container")
    assert declined.network == "default"
    assert (gang.is_ready, gang.is_settled) == (False, False)

    Attempt.objects.filter(pk=attempt.pk).update(state=S.RUNNING)
    Task.objects.filter(pk__in=[driver.pk, second.pk]).update(state=S.RUNNING)
    ready = read_gang(cell, attempt)
    assert (ready.is_ready, ready.is_settled) == (True, False)


def test_pending_member_is_listed_without_cell_and_addresses(
    submitter: Caller, make_cell: Callable[..., Cell], cell: Cell
) -> None:
    other = make_cell("cell-2")
    driver, worker, *_ = submit_gang(submitter)
    attempt = place(driver, cell)
    place(worker, other, details={"addresses": {"ssh": "10.0.0.2:4711"}})
    Task.objects.filter(pk=worker.pk).update(state=S.PENDING)
    member = read_gang(cell, attempt).find("worker", 0)
    assert member is not None
    assert (member.state, member.cell, member.addresses) == (S.PENDING, None, {})


def test_members_share_the_key_pair_of_their_gang_only(submitter: Caller, cell: Cell) -> None:
    tasks, others = submit_gang(submitter), submit_gang(submitter)
    pairs = [briefed(cell, place(task, cell)) for task in (*tasks[:2], others[0])]
    assert len({key.public.split()[1] for key in pairs}) == 2
    assert pairs[0].public == pairs[1].public != pairs[2].public
    for key in pairs:
        private = load_ssh_private_key(key.private.encode(), password=None)
        public = load_ssh_public_key(key.public.encode())
        assert private.public_key() == public
    assert pairs[0].private not in repr(pairs[0])


def test_sealed_answer_opens_only_for_its_own_endpoint_and_request(
    submitter: Caller, cell: Cell
) -> None:
    driver, *_ = submit_gang(submitter)
    uid = place(driver, cell).uid
    first, other = request(cell, uid), request(cell, uid, "briefing")
    assert opened(cell, uid, first)
    for answer, endpoint in ((first, "briefing"), (other, "gang")):
        with pytest.raises(InvalidTag):
            opened(cell, uid, answer, endpoint)
    first.request_headers["X-Cellrun-Mac"] = other.request_headers["X-Cellrun-Mac"]
    with pytest.raises(InvalidTag):
        opened(cell, uid, first)


def test_gang_is_disclosed_only_to_the_cell_of_an_open_gang_attempt(
    submitter: Caller, make_cell: Callable[..., Cell], cell: Cell
) -> None:
    driver, *_ = submit_gang(submitter)
    attempt = place(driver, cell)
    assert request(make_cell("cell-2"), attempt.uid).status == 404
    assert request(cell, uuid.uuid4()).status == 404
    assert Caller(None).send("POST", f"/attempts/{attempt.uid}/gang").status == 401
    Attempt.objects.filter(pk=attempt.pk).update(
        state=S.SUCCEEDED, finished_at=clock.now(), released_at=clock.now()
    )
    assert request(cell, attempt.uid).status == 404
    alone = submit(submitter)
    assert Job.objects.get(pk=alone).coscheduled is False
    assert request(cell, place(tasks_of(alone)[0], cell).uid).status == 404
