"""Streams of exec sessions through real web processes and Redis, with scripted ends."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
import redis
from websockets.exceptions import ConnectionClosed, InvalidStatus

from controlplane import clock
from controlplane.commands.convergence.rules import RULES
from controlplane.commands.convergence.runner import RuleRunner
from controlplane.contract.exec_frames import (
    MAX_DATA_BYTES,
    MAX_UNCONFIRMED_BYTES,
    FrameKind,
    read_exit,
)
from controlplane.domain.convergence.policy import Policy
from controlplane.domain.roles import Role
from controlplane.models import (
    ApiToken,
    Attempt,
    AuditLine,
    Cell,
    CellLease,
    ExecSession,
    Membership,
    Task,
)
from tests.harness.exec_streams import (
    ExecPeer,
    ExecWeb,
    connect_cell,
    connect_client,
    open_socket,
    sign,
)
from tests.integration.api.conftest import Caller, make_caller
from tests.integration.api.test_reading import place, submit

pytestmark = pytest.mark.django_db(transaction=True)

DATA, STDERR, EOF, EXIT = FrameKind.DATA, FrameKind.STDERR, FrameKind.EOF, FrameKind.EXIT


@dataclass
class Scene:
    """A running attempt, its cell, its submitter, and two web processes."""

    caller: Caller
    cell: Cell
    attempt: Attempt
    web: ExecWeb
    other_web: ExecWeb

    @property
    def token(self) -> str:
        return self.caller.headers["Authorization"].removeprefix("Bearer ")

    def request(self, *command: str, **fields: Any) -> str:
        """Request a session; return its uid."""
        body = {"command": command or ("sh",), "stdin": True, **fields}
        answer = self.caller.post(f"/attempts/{self.attempt.uid}/exec", body)
        assert answer.status == 201, answer.content
        return str(answer.json["uid"])

    def client(self, session: str, **fields: Any) -> ExecPeer:
        """Connect the client to one of the processes."""
        return connect_client(self.web, session, self.token, **fields)

    def serve(self, session: str, **fields: Any) -> ExecPeer:
        """Connect the cell to the other process."""
        return connect_cell(self.other_web, session, self.cell, **fields)

    def open(self) -> tuple[str, ExecPeer, ExecPeer]:
        """Return an open session with both ends."""
        session = self.request()
        client, cell = self.client(session), self.serve(session)
        wait_for(lambda: row_of(session).opened_at is not None)
        return session, client, cell


@pytest.fixture
def processes() -> Iterator[tuple[ExecWeb, ExecWeb]]:
    found = ExecWeb(), ExecWeb()
    yield found
    for web in found:
        web.stop()


def open_lease(cell: Cell) -> None:
    """Let the cell have sent a heartbeat just now."""
    now = clock.now()
    CellLease.objects.update_or_create(
        cell=cell,
        defaults={"incarnation": "i", "expires_at": now, "last_message_at": now},
    )


@pytest.fixture
def scene(
    submitter: Caller, make_cell: Callable[..., Cell], processes: tuple[ExecWeb, ExecWeb]
) -> Scene:
    cell = make_cell()
    Cell.objects.filter(pk=cell.pk).update(incarnation="i", state="READY")
    open_lease(cell)
    attempt = place(Task.objects.get(job_id=submit(submitter)), cell)
    return Scene(submitter, cell, attempt, *processes)


def row_of(session: str) -> ExecSession:
    return ExecSession.objects.get(pk=session)


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> float:
    """Poll a condition; return after how many seconds it holds."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() < began + seconds
        threading.Event().wait(0.05)
    return time.monotonic() - began


def test_frames_pass_in_order_and_the_exit_code_is_stored(scene: Scene) -> None:
    session, client, cell = scene.open()
    for word in (b"one", b"two", b"three"):
        client.send(DATA, word)
    client.send(EOF)
    assert [cell.next().payload for _ in range(3)] == [b"one", b"two", b"three"]
    assert cell.next().kind is EOF
    sent = [(DATA, b"out 1"), (STDERR, b"err"), (DATA, b"out 2")]
    for kind, payload in sent:
        cell.send(kind, payload)
    cell.exit(7)
    received = [client.next() for _ in range(4)]
    assert [(frame.kind, frame.payload) for frame in received[:3]] == sent
    assert [frame.position for frame in received] == [1, 2, 3, 4]
    assert read_exit(received[3]) == (7, "")
    assert row_of(session).exit_code == 7  # before the client has the frame
    assert client.close_code() == 1000
    assert [state["state"] for state in client.states] == ["REQUESTED", "ENDED"]
    assert client.states[-1]["exit_code"] == 7
    assert cell.close_code() == 1000
    assert cell.accepted == 4
    shown = scene.caller.get(f"/exec/{session}").json
    assert (shown["state"], shown["exit_code"], shown["reason"]) == ("ENDED", 7, "")


def test_client_continues_after_a_killed_connection_without_gap_or_repetition(
    scene: Scene,
) -> None:
    session, client, cell = scene.open()
    cell.send(DATA, b"a")
    cell.send(DATA, b"b")
    assert client.next().payload == b"a"
    client.send(DATA, b"typed")
    assert cell.next().payload == b"typed"
    client.kill()
    cell.send(DATA, b"c")
    again = scene.client(session, after=1)
    assert [again.next().payload for _ in range(2)] == [b"b", b"c"]
    again.sent = 0
    again.send(DATA, b"typed")  # the same frame once more
    again.send(DATA, b"more")
    assert cell.next().payload == b"more"
    again.wait_until_accepted(2)


def test_cell_continues_after_a_killed_connection_and_repeats_frames(scene: Scene) -> None:
    session, client, cell = scene.open()
    cell.send(DATA, b"a")
    cell.wait_until_accepted(1)
    cell.kill()
    again = scene.serve(session)
    again.sent = 0
    for word in (b"a", b"b"):
        again.send(DATA, word)
    again.exit(0)
    assert [client.next().payload for _ in range(2)] == [b"a", b"b"]
    assert read_exit(client.next()) == (0, "")


def test_both_sides_continue_after_a_restart_of_web(scene: Scene) -> None:
    session, client, cell = scene.open()
    cell.send(DATA, b"before")
    assert client.next().payload == b"before"
    scene.web.stop()
    assert client.close_code() in (1012, 1006)
    moved = connect_client(scene.other_web, session, scene.token, after=1)
    cell.send(DATA, b"after")
    assert moved.next().payload == b"after"


def test_second_process_of_the_cell_cannot_claim(scene: Scene) -> None:
    session, client, cell = scene.open()
    cell.send(DATA, b"x")
    assert client.next().payload == b"x"
    assert scene.serve(session, nonce="cd" * 16).close_code() == 4409
    cell.send(DATA, b"y")
    assert client.next().payload == b"y"


def test_newest_connection_of_a_side_replaces_the_one_before(scene: Scene) -> None:
    session, client, cell = scene.open()
    newer = scene.client(session)
    assert client.close_code() == 4409
    cell.send(DATA, b"x")
    assert newer.next().payload == b"x"


def test_revoked_token_ends_the_session_within_five_seconds(scene: Scene) -> None:
    session, client, cell = scene.open()
    ApiToken.objects.all().delete()
    assert wait_for(lambda: row_of(session).ended_at is not None) < 5
    assert client.close_code() == 4403
    assert cell.close_code() == 1000
    assert "token" in row_of(session).reason


def test_lost_role_ends_the_session(scene: Scene) -> None:
    session, client, _ = scene.open()
    Membership.objects.update(role=Role.VIEWER)
    assert client.close_code() == 4403
    assert row_of(session).ended_at is not None


def test_request_of_a_user_ends_the_session_for_both(scene: Scene) -> None:
    session, client, cell = scene.open()
    cell.send(DATA, b"last words")
    cell.wait_until_accepted(1)
    assert scene.caller.send("DELETE", f"/exec/{session}").status == 204
    assert client.next().payload == b"last words"
    assert client.close_code() == 1000
    assert cell.close_code() == 1000
    assert client.states[-1]["reason"] == "ann ended the session"
    assert scene.caller.send("DELETE", f"/exec/{session}").status == 409


def test_emptied_redis_ends_the_session_with_a_reason(scene: Scene, settings: Any) -> None:
    session, client, cell = scene.open()
    redis.Redis.from_url(settings.CELERY_BROKER_URL).flushdb()
    cell.send(DATA, b"x")
    assert client.close_code() == 1000
    assert cell.close_code() == 1000
    assert "Redis" in client.states[-1]["reason"]
    assert row_of(session).reason == client.states[-1]["reason"]


def test_redis_emptied_before_the_claim_ends_the_session(scene: Scene, settings: Any) -> None:
    session = scene.request()
    client = scene.client(session)
    client.send(DATA, b"lost")
    client.wait_until_accepted(1)
    redis.Redis.from_url(settings.CELERY_BROKER_URL).flushdb()
    cell = scene.serve(session)
    assert client.close_code() == 1000
    assert "Redis" in client.states[-1]["reason"]
    assert cell.close_code() == 1000


def test_session_is_not_begun_again_after_redis_was_emptied(scene: Scene, settings: Any) -> None:
    session, client, cell = scene.open()
    client.kill()
    cell.kill()
    redis.Redis.from_url(settings.CELERY_BROKER_URL).flushdb()
    assert scene.serve(session).close_code() == 1000
    assert "Redis" in row_of(session).reason


HOSTILE = {
    "empty": b"",
    "no kind": b"\x09" + bytes(8),
    "position 0": b"\x01" + bytes(8) + b"x",
    "gap": b"\x01" + (2).to_bytes(8, "big") + b"x",
    "huge position": b"\x01" + ((1 << 63) - 1).to_bytes(8, "big") + b"x",
    "beyond 63 bits": b"\x01" + b"\xff" * 8 + b"x",
    "state": b"\x12" + bytes(8) + b"{}",
    "accepted": b"\x10" + bytes(8),
    "ack of nothing": b"\x11" + (5).to_bytes(8, "big"),
    "long": b"\x01" + (1).to_bytes(8, "big") + bytes(MAX_DATA_BYTES + 1),
}


@pytest.mark.parametrize("message", HOSTILE.values(), ids=HOSTILE)
def test_hostile_frame_closes_only_its_connection(scene: Scene, message: bytes) -> None:
    session, client, cell = scene.open()
    client.socket.send(message)
    assert client.close_code() == 4400
    again = scene.client(session)
    cell.socket.send(message)
    assert cell.close_code() == 4400
    serving = scene.serve(session)
    serving.send(DATA, b"alive")
    assert again.next().payload == b"alive"


def test_frames_of_the_wrong_side_are_refused(scene: Scene) -> None:
    _, client, cell = scene.open()
    client.send(STDERR, b"x")
    assert client.close_code() == 4400
    cell.send(EOF)
    assert cell.close_code() == 4400


def test_text_message_is_refused(scene: Scene) -> None:
    _, client, _ = scene.open()
    client.socket.send("hello")
    assert client.close_code() == 4400


def test_message_over_the_limit_of_the_library_closes(scene: Scene) -> None:
    _, client, _ = scene.open()
    with suppress(ConnectionClosed):
        client.socket.send(bytes(1_000_000))
    assert client.close_code() in (1006, 1009)


def test_receiver_that_consumes_nothing_stops_the_sender_with_bounded_memory(
    scene: Scene, settings: Any
) -> None:
    session, client, cell = scene.open()
    block = bytes(MAX_DATA_BYTES)
    frames = 2 * MAX_UNCONFIRMED_BYTES // MAX_DATA_BYTES
    sender = threading.Thread(target=lambda: [cell.send(DATA, block) for _ in range(frames)])
    sender.start()
    received = []
    while len(received) < MAX_UNCONFIRMED_BYTES // MAX_DATA_BYTES - 1:
        received.append(client.next(acknowledges=False))
    server = redis.Redis.from_url(settings.CELERY_BROKER_URL)
    assert sum(len(frame.payload) for frame in received) < MAX_UNCONFIRMED_BYTES
    assert server.memory_usage(f"exec:{session}:out") < 1.5 * MAX_UNCONFIRMED_BYTES
    with pytest.raises(TimeoutError):
        client.socket.recv(1.0)
    # An ACK of the cell is read although its data is not accepted.
    client.send(DATA, b"typed")
    assert cell.next().payload == b"typed"
    wait_for(lambda: server.xlen(f"exec:{session}:in") == 0)
    client.acknowledge(received[-1].position)
    while len(received) < frames:
        received.append(client.next())
    sender.join()
    assert [frame.position for frame in received] == list(range(1, frames + 1))
    wait_for(lambda: server.xlen(f"exec:{session}:out") == 0)


def test_megabytes_pass_near_the_limit_of_a_session(scene: Scene) -> None:
    """4 MiB/s per direction, after a burst of 1 MiB."""
    _, client, cell = scene.open()
    frames = 8 * 1024 * 1024 // MAX_DATA_BYTES
    began = time.monotonic()

    def send_all() -> None:
        for _ in range(frames):
            while cell.sent - cell.accepted >= 12:
                cell.wait_until_accepted(cell.accepted + 1)
            cell.send(DATA, bytes(MAX_DATA_BYTES))

    sender = threading.Thread(target=send_all)
    sender.start()
    total = sum(len(client.next().payload) for _ in range(frames))
    seconds = time.monotonic() - began
    sender.join()
    assert total == 8 * 1024 * 1024
    assert 1.5 < seconds < 8


def test_sender_that_floods_is_read_up_to_a_limit(scene: Scene) -> None:
    """A sender that ignores ACCEPTED stops itself: web reads no more than 1.25 MiB ahead."""
    _, client, cell = scene.open()

    def flood() -> None:
        with suppress(ConnectionClosed, OSError):
            while cell.sent < 2_000:
                cell.send(DATA, bytes(MAX_DATA_BYTES))

    sender = threading.Thread(target=flood)
    sender.start()
    sizes = [-1, 0]
    while sizes[-1] != sizes[-2]:
        threading.Event().wait(1.0)
        sizes.append(cell.sent)
    # The buffers of the kernel are part of it.
    assert cell.sent * MAX_DATA_BYTES < 16 * MAX_UNCONFIRMED_BYTES
    assert client.next().position == 1
    cell.kill()
    sender.join()


def test_session_whose_client_is_gone_ends_for_the_cell(scene: Scene) -> None:
    session, client, cell = scene.open()
    client.kill()
    old = clock.now() - timedelta(seconds=31)

    def is_ended() -> bool:
        ExecSession.objects.filter(ended_at=None).update(client_seen_at=old)
        rule = next(rule for rule in RULES if rule.name == "exec_sessions")
        RuleRunner([rule], clock.now(), Policy()).run()
        return row_of(session).ended_at is not None

    wait_for(is_ended)
    assert cell.close_code() == 1000
    assert row_of(session).reason == "the client was not connected for 30 s"
    late = scene.client(session)
    assert late.close_code() == 1000
    assert late.states[-1]["state"] == "ENDED"


def test_revoked_key_of_the_cell_closes_its_stream(scene: Scene) -> None:
    _, _, cell = scene.open()
    Cell.objects.update(revoked_at=clock.now(), state="LOST")
    assert cell.close_code() == 4403


def test_streams_are_refused_without_their_permission(scene: Scene) -> None:
    session = scene.request()
    other = make_caller("eve", Role.SUBMITTER)
    token = other.headers["Authorization"].removeprefix("Bearer ")
    assert connect_client(scene.web, session, token).close_code() == 4403
    assert connect_client(scene.web, str(uuid4()), scene.token).close_code() == 4404
    outsider = make_caller("oscar", Role.SUBMITTER, project=None)
    Membership.objects.filter(user=outsider.user).delete()
    hidden = outsider.headers["Authorization"].removeprefix("Bearer ")
    assert connect_client(scene.web, session, hidden).close_code() == 4404
    for path, headers, status in (
        (f"/api/v1/exec/{session}/stream", {}, 401),
        (f"/api/v1/exec/{session}/stream", {"Authorization": "Bearer x"}, 401),
        (f"/api/v1/exec/{session}/cell?nonce={'ab' * 16}", {}, 401),
        (f"/api/v1/exec/{session}/stream?after=x", {"Authorization": f"Bearer {scene.token}"}, 400),
        ("/api/v1/jobs", {}, 404),
        ("/admin/", {}, 404),
    ):
        with pytest.raises(InvalidStatus) as refused:
            open_socket(f"{scene.web.url}{path}", headers)
        assert refused.value.response.status_code == status, path
    assert row_of(session).state == 1
    line = AuditLine.objects.get(action="refuse.token")
    assert line.address == "127.0.0.1"


def test_only_the_cell_of_the_attempt_can_claim(
    scene: Scene, make_cell: Callable[..., Cell]
) -> None:
    session, other = scene.request(), make_cell("cell-2")
    assert connect_cell(scene.web, session, other).close_code() == 4404
    path = f"/api/v1/exec/{session}/cell?after=0&nonce={'ab' * 16}"
    signed = sign(scene.cell, path)
    forged = (
        (path.replace("ab" * 16, "cd" * 16), signed),
        (path, sign(scene.cell, path, key=b"k" * 32)),
        (path, {**signed, "X-Cellrun-Time": "1"}),
    )
    for address, headers in forged:
        with pytest.raises(InvalidStatus) as refused:
            open_socket(f"{scene.web.url}{address}", headers)
        assert refused.value.response.status_code == 401
    assert row_of(session).state == 1
