"""Sessions of a cell against a web of their own: claims, streams, losses, hostile answers."""

import hashlib
import os
import threading
from collections.abc import Callable, Iterator

import pytest
from websockets.exceptions import ConnectionClosed

from controlplane.contract.exec_frames import (
    CloseCode,
    ExecFrame,
    FrameKind,
    pack_frame,
    read_exit,
)
from controlplane.contract.messages.orders import ExecOrder
from controlplane.contract.wire import keys
from tests.harness.exec_web import ExecWeb, until
from workers.drivers.process.programs import ProcessProgram
from workers.exec.connection import CellConnector
from workers.exec.program import ExecCommand, ExecProgram, ExecRefused
from workers.exec.scripted import ScriptedProgram
from workers.exec.sessions import MAX_REFUSALS, MAX_SESSIONS, CellSessions
from workers.signatures import signed_headers

KEY = b"k" * 32
ORDER = {"env": {"PATH": os.environ["PATH"]}, "cwd": "/", "memory_bytes": 0}


def order(*command: str, session: str = "s", tty: bool = False, stdin: bool = True) -> ExecOrder:
    return ExecOrder("attempt", session, command, tty, stdin, 0.0, 24, 80)


class Programs:
    """Starts programs of this machine, or scripted ones, and keeps them."""

    def __init__(self) -> None:
        self.started: list[ExecProgram] = []
        self.is_over = False
        self.is_scripted = False

    def execute(self, command: ExecCommand) -> ExecProgram:
        if self.is_scripted:
            program: ExecProgram = ScriptedProgram(command, lambda: self.is_over)
        else:
            program = ProcessProgram(ORDER, command, lambda: self.is_over)
        self.started.append(program)
        return program


@pytest.fixture
def web() -> Iterator[ExecWeb]:
    with ExecWeb() as web:
        yield web


@pytest.fixture
def programs() -> Programs:
    return Programs()


@pytest.fixture
def sessions(web: ExecWeb, programs: Programs) -> Iterator[CellSessions]:
    found = make(web, programs.execute)
    yield found
    found.close()
    assert found.count == 0
    assert [t.name for t in threading.enumerate() if t.name.startswith("exec-")] == []


def make(
    web: ExecWeb, execute: Callable[[ExecCommand], ExecProgram], **options: bool
) -> CellSessions:
    connector = CellConnector(control_url=web.url, cell="cell-1", key=KEY)
    return CellSessions(cell="cell-1", connect=connector.connect, execute=execute, **options)


def begin(sessions: CellSessions, *command: str, **options: bool) -> None:
    sessions.begin(order(*command, **options), 30.0)


def test_output_errors_and_exit_code_reach_the_client(web: ExecWeb, sessions: CellSessions) -> None:
    begin(sessions, "sh", "-c", "echo out; echo err >&2; exit 7")
    assert read_exit(web.end()) == (7, "")
    assert web.to_client.content() == b"out\n"
    assert web.to_client.content(FrameKind.STDERR) == b"err\n"
    until(lambda: sessions.count == 0)


def test_handshake_is_signed_over_path_and_query(web: ExecWeb, sessions: CellSessions) -> None:
    begin(sessions, "true")
    web.end()
    [request] = web.requests
    assert request.path.startswith("/api/v1/exec/s/cell?after=0&nonce=")
    at = int(request.headers["X-Cellrun-Time"])
    key = keys.mac_key(KEY, keys.UPLOAD)
    expected = signed_headers(key, "cell-1", web.url + request.path, b"", at)
    assert request.headers["X-Cellrun-Mac"] == expected["X-Cellrun-Mac"]
    assert request.headers["X-Cellrun-Cell"] == "cell-1"


def test_ten_megabytes_come_back_while_connections_break(
    web: ExecWeb, sessions: CellSessions
) -> None:
    content = os.urandom(10 * 2**20)
    begin(sessions, "cat")
    pieces = [content[start : start + 65536] for start in range(0, len(content), 65536)]
    for number, piece in enumerate(pieces):
        web.type((FrameKind.DATA, piece))
        web.wait_for(web.to_cell, lambda n=number: web.to_cell.confirmed >= n - 8)
        if number in (20, 70, 120):
            web.drop()
    web.type((FrameKind.EOF, b""))
    assert read_exit(web.end()) == (0, "")
    output = web.to_client.content()
    assert hashlib.sha256(output).digest() == hashlib.sha256(content).digest()
    nonces = {request.path.partition("nonce=")[2] for request in web.requests}
    assert len(web.requests) >= 4
    assert len(nonces) == 1


def test_frames_that_were_not_accepted_are_sent_again(web: ExecWeb, sessions: CellSessions) -> None:
    web.is_accepting = False
    begin(sessions, "echo", "once")
    web.end()
    web.is_accepting = True
    web.drop()
    until(lambda: sessions.count == 0)
    until(lambda: web.to_client.repeated)
    assert web.to_client.content() == b"once\n"


def test_end_waits_for_a_reader_that_is_slower_than_a_reconnect(
    web: ExecWeb, sessions: CellSessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(sessions, "sh", "-c", "read line; echo once")
    until(lambda: web.connections)
    monkeypatch.setattr("workers.exec.session.RECONNECT_SECONDS", 0.0)
    web.is_accepting = False
    web.type((FrameKind.DATA, b"\n"))
    web.end()
    web.is_accepting = True
    web.drop()
    until(lambda: web.to_client.repeated, 10)
    until(lambda: sessions.count == 0)


def test_restart_of_web_does_not_end_the_program(web: ExecWeb, sessions: CellSessions) -> None:
    begin(sessions, "cat")
    web.type((FrameKind.DATA, b"before "))
    web.wait_for(web.to_client, lambda: web.to_client.frames)
    web.stop()
    web.type((FrameKind.DATA, b"after"), (FrameKind.EOF, b""))
    web.start()
    assert read_exit(web.end()) == (0, "")
    assert web.to_client.content() == b"before after"


def test_reader_that_confirms_nothing_stops_the_program(
    web: ExecWeb, sessions: CellSessions
) -> None:
    web.is_accepting = False
    begin(sessions, "sh", "-c", "cat /dev/zero")
    web.wait_for(web.to_client, lambda: len(web.to_client.content()) > 200_000)
    stored = [len(web.to_client.content())]

    def is_steady() -> bool:
        stored.append(len(web.to_client.content()))
        return len(stored) > 100 and stored[-100] == stored[-1]

    until(is_steady)
    assert stored[-1] < 512 * 1024


def test_terminal_gets_sizes_and_keys(web: ExecWeb, sessions: CellSessions) -> None:
    begin(sessions, "sh", tty=True)
    web.type((FrameKind.DATA, b"stty size\n"))
    web.wait_for(web.to_client, lambda: b"24 80" in web.to_client.content())
    web.resize(33, 77)
    web.type((FrameKind.DATA, b"stty size; exit 3\n"))
    assert read_exit(web.end()) == (3, "")
    assert b"33 77" in web.to_client.content()


def test_signal_reaches_a_program_that_reads_no_input(web: ExecWeb, sessions: CellSessions) -> None:
    begin(sessions, "sh", "-c", "trap 'exit 9' INT; echo ready; while :; do sleep 0.05; done")
    web.wait_for(web.to_client, lambda: web.to_client.content())
    web.type((FrameKind.DATA, bytes(65536)), (FrameKind.DATA, bytes(65536)))
    web.type((FrameKind.SIGNAL, b"\x02"))
    assert read_exit(web.end())[0] == 9


@pytest.mark.parametrize("code", [CloseCode.ENDED, CloseCode.NOT_PERMITTED, CloseCode.UNKNOWN])
def test_end_of_the_session_ends_the_program(
    web: ExecWeb, sessions: CellSessions, programs: Programs, code: CloseCode
) -> None:
    begin(sessions, "sh", "-c", "echo ready; sleep 1000")
    web.wait_for(web.to_client, lambda: web.to_client.content())
    web.drop(code)
    until(lambda: sessions.count == 0)
    [program] = programs.started
    assert program.read() is None
    assert len(web.requests) == 1


def test_end_of_the_attempt_ends_the_program(
    web: ExecWeb, sessions: CellSessions, programs: Programs
) -> None:
    begin(sessions, "sh", "-c", "echo ready; sleep 1000")
    web.wait_for(web.to_client, lambda: web.to_client.content())
    programs.is_over = True
    assert read_exit(web.end())[0] == 137


def test_end_of_the_cell_ends_all_programs(
    web: ExecWeb, sessions: CellSessions, programs: Programs
) -> None:
    begin(sessions, "sh", "-c", "trap '' HUP; echo ready; sleep 1000; sleep 1000")
    web.wait_for(web.to_client, lambda: web.to_client.content())
    sessions.close()
    assert sessions.count == 0
    assert programs.started[0].read() is None


@pytest.mark.parametrize("status", [403, 404, 409])
def test_refused_claim_starts_nothing(
    web: ExecWeb, sessions: CellSessions, programs: Programs, status: int
) -> None:
    web.refuses = status
    begin(sessions, "true")
    until(lambda: sessions.count == 0)
    assert (programs.started, len(web.requests)) == ([], 1)


@pytest.mark.parametrize("code", [4403, 4404, 4409, 1000])
def test_claim_that_is_refused_after_the_handshake_starts_nothing(
    web: ExecWeb, sessions: CellSessions, programs: Programs, code: int
) -> None:
    web.closes = code
    begin(sessions, "true")
    until(lambda: sessions.count == 0)
    assert (programs.started, len(web.requests)) == ([], 1)


def test_claim_is_repeated_while_web_is_unavailable(web: ExecWeb, sessions: CellSessions) -> None:
    web.refuses = 503
    begin(sessions, "true")
    until(lambda: len(web.requests) >= 2)
    web.refuses = None
    assert read_exit(web.end()) == (0, "")


def test_late_claim_starts_nothing(
    web: ExecWeb, sessions: CellSessions, programs: Programs
) -> None:
    web.refuses = 503
    sessions.begin(order("true"), 0.5)
    until(lambda: sessions.count == 0)
    sessions.begin(order("true", session="other"), -1.0)
    assert (sessions.count, programs.started) == (0, [])


def test_repeated_order_starts_nothing_twice(
    web: ExecWeb, sessions: CellSessions, programs: Programs
) -> None:
    for _ in range(3):
        begin(sessions, "true")
    web.end()
    until(lambda: sessions.count == 0)
    begin(sessions, "true")
    assert (len(programs.started), sessions.count, len(web.requests)) == (1, 0, 1)


def test_host_that_refuses_reports_why(web: ExecWeb, programs: Programs) -> None:
    sessions = make(web, programs.execute, is_allowed=False)
    begin(sessions, "true")
    reason = "cell cell-1 runs no programs of users (CELLRUN_CELL_EXEC=false)"
    assert read_exit(web.end()) == (126, reason)
    assert programs.started == []
    sessions.close()


def test_program_that_cannot_start_has_code_and_reason(
    web: ExecWeb, sessions: CellSessions
) -> None:
    begin(sessions, "no-such-program")
    assert read_exit(web.end()) == (127, "exec 'no-such-program': no such file or directory")


@pytest.mark.parametrize("fault", [ExecRefused("not so", 126), RuntimeError("not so")])
def test_error_of_the_driver_is_reported(web: ExecWeb, fault: Exception) -> None:
    def execute(command: ExecCommand) -> ExecProgram:
        raise fault

    sessions = make(web, execute)
    begin(sessions, "true")
    code, reason = read_exit(web.end())
    assert code == 126
    assert "not so" in reason
    sessions.close()


HOSTILE = {
    "empty": b"",
    "unknown kind": b"\x99" + bytes(8),
    "kind of a cell": pack_frame(ExecFrame(FrameKind.STDERR, 1, b"x")),
    "gap": pack_frame(ExecFrame(FrameKind.DATA, 5, b"x")),
    "accepted what was not sent": pack_frame(ExecFrame(FrameKind.ACCEPTED, 10**12)),
    "too long": b"\x01" + bytes(7) + b"\x01" + bytes(2 * 2**20),
    "short size": b"\x03" + bytes(7) + b"\x01" + b"1",
}


def throw(web: ExecWeb, message: bytes) -> None:
    """Send a message on every connection; a cell that comes again is refused."""
    for connection in list(web.connections):
        try:
            connection.send(message)
        except ConnectionClosed:
            web.refuses = 404


@pytest.mark.parametrize("message", HOSTILE.values(), ids=HOSTILE)
def test_hostile_frame_ends_only_its_session(
    web: ExecWeb, sessions: CellSessions, programs: Programs, message: bytes
) -> None:
    begin(sessions, "sh", "-c", "echo ready; sleep 1000")
    web.wait_for(web.to_client, lambda: web.to_client.content())
    until(lambda: throw(web, message) or sessions.count == 0)
    assert programs.started[0].read() is None


def test_text_and_odd_signals_do_no_harm(web: ExecWeb, sessions: CellSessions) -> None:
    begin(sessions, "cat")
    web.wait_for(web.to_cell, lambda: True)
    until(lambda: web.connections)
    web.type((FrameKind.SIGNAL, b"\xff"), (FrameKind.SIGNAL, b"\x00"), (FrameKind.RESIZE, bytes(4)))
    web.type((FrameKind.EOF, b""), (FrameKind.DATA, b"late"))
    assert read_exit(web.end()) == (0, "")


def test_flood_of_input_ends_the_session(web: ExecWeb, sessions: CellSessions) -> None:
    begin(sessions, "sleep", "1000")
    for _ in range(64):
        web.type((FrameKind.DATA, bytes(65536)))
    until(lambda: sessions.count == 0)


def test_number_of_sessions_is_bounded(
    web: ExecWeb, sessions: CellSessions, programs: Programs
) -> None:
    programs.is_scripted = web.has_several = True
    for number in range(MAX_SESSIONS + MAX_REFUSALS + 10):
        sessions.begin(order("sleep", session=f"s{number}"), 30.0)
    until(lambda: sessions.count == len(programs.started) == MAX_SESSIONS)
