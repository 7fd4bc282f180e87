"""The streams and the terminal of `cellrun exec`, against a web of their own."""

import hashlib
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from websockets.sync.server import ServerConnection

from cellrun.exec.program import BLOCK_BYTES
from controlplane.contract.exec_frames import CloseCode, FrameKind, read_size
from tests.harness.exec_web import ExecWeb, until
from tests.harness.terminal import read_until

ATTACH = """
import sys
from cellrun.exec.program import attach
from cellrun.settings import ClientSettings
url, tty, stdin = sys.argv[1:]
code, reason = attach(
    ClientSettings(url, "token"), "s", has_tty=tty == "tty", has_stdin=stdin == "stdin"
)
sys.stderr.write(reason)
sys.exit(code)
"""

FAILING_PINGS = """
from functools import partial
from cellrun.exec import connection
def ping(socket, *args, **options):
    socket.send(bytes.fromhex("06" + "0" * 15 + "102"))
    raise RuntimeError("keepalive ping failed")
connection.ClientConnection.ping = ping
connection.connect = partial(connection.connect, ping_interval=0.01)
"""


@pytest.fixture
def web() -> Iterator[ExecWeb]:
    with ExecWeb() as web:
        yield web


def words(web: ExecWeb, *, tty: bool, stdin: bool) -> list[str]:
    options = ["tty" if tty else "", "stdin" if stdin else ""]
    return [sys.executable, "-c", ATTACH, web.url, *options]


@contextmanager
def piped(web: ExecWeb, *, stdin: bool = True) -> Iterator[subprocess.Popen[bytes]]:
    """Run the client with pipes."""
    pipe = subprocess.PIPE
    command = words(web, tty=False, stdin=stdin)
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def on_terminal(web: ExecWeb) -> Iterator[tuple[subprocess.Popen[bytes], int, int]]:
    """Run the client on a pseudo-terminal; yield it with both ends."""
    ours, theirs = pty.openpty()
    command = words(web, tty=True, stdin=True)
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as process:
        try:
            yield process, ours, theirs
        finally:
            process.kill()
            os.close(ours)
            os.close(theirs)


def is_raw(terminal: int) -> bool:
    return not termios.tcgetattr(terminal)[3] & (termios.ECHO | termios.ICANON | termios.ISIG)


def test_streams_come_apart_with_the_exit_code(web: ExecWeb) -> None:
    web.send(FrameKind.DATA, b"out\n")
    web.send(FrameKind.STDERR, b"err\n")
    web.exit(7)
    with piped(web) as process:
        output, errors = process.communicate(timeout=60)
    assert (output, errors, process.returncode) == (b"out\n", b"err\n", 7)
    assert web.requests[0].headers["Authorization"] == "Bearer token"
    assert web.requests[0].path == "/api/v1/exec/s/stream?after=0"


def test_reason_of_a_program_that_never_ran_is_an_error(web: ExecWeb) -> None:
    web.exit(127, "exec 'nothing': no such file or directory")
    with piped(web) as process:
        _, errors = process.communicate(timeout=60)
    assert (errors, process.returncode) == (b"exec 'nothing': no such file or directory", 127)


def test_ten_megabytes_of_input_arrive_whole_with_their_end(web: ExecWeb) -> None:
    content = os.urandom(10 * 2**20)

    def echo_end() -> bool:
        frames = web.to_cell.frames
        return bool(frames) and frames[-1].kind is FrameKind.EOF

    with piped(web) as process:
        assert process.stdin is not None
        process.stdin.write(content)
        process.stdin.close()
        web.wait_for(web.to_cell, echo_end)
        web.exit(0)
        assert process.wait(60) == 0
    assert hashlib.sha256(web.to_cell.content()).digest() == hashlib.sha256(content).digest()


def test_output_and_input_continue_over_a_new_connection(web: ExecWeb) -> None:
    with piped(web) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        web.send(FrameKind.DATA, b"one\n")
        assert process.stdout.readline() == b"one\n"
        until(lambda: web.to_client.confirmed == 1)
        web.stop()
        process.stdin.write(b"typed meanwhile")
        process.stdin.flush()
        web.send(FrameKind.DATA, b"two\n")
        web.start()
        assert process.stdout.readline() == b"two\n"
        web.wait_for(web.to_cell, lambda: web.to_cell.content() == b"typed meanwhile")
        web.exit(0)
        assert process.wait(60) == 0
    assert web.requests[-1].path.endswith("after=1")


def test_everything_before_the_end_is_written(web: ExecWeb) -> None:
    content = os.urandom(2 * 2**20)
    for start in range(0, len(content), 65536):
        web.send(FrameKind.DATA, content[start : start + 65536])
    web.exit(3)
    with piped(web) as process:
        output, _ = process.communicate(timeout=60)
    assert (output == content, process.returncode) == (True, 3)


def test_connection_stays_alive_while_the_output_is_not_read(web: ExecWeb) -> None:
    content = os.urandom(2**20)
    with piped(web) as process:
        for start in range(0, len(content), BLOCK_BYTES):
            web.send(FrameKind.DATA, content[start : start + BLOCK_BYTES])
        until(lambda: web.to_client.confirmed)  # the pipe is full after some frames
        pings = [connection.ping() for connection in web.connections]
        assert all(ping.wait(20) for ping in pings)
        assert 0 < web.to_client.confirmed < len(web.to_client.frames)
        web.exit(3)
        output, errors = process.communicate(timeout=60)
    assert (output == content, errors, process.returncode) == (True, b"", 3)
    assert len(web.requests) == 1


def test_output_that_was_received_is_written_before_the_loss_is_reported(web: ExecWeb) -> None:
    content = os.urandom(2**20)
    with piped(web) as process:
        for start in range(0, len(content), BLOCK_BYTES):
            web.send(FrameKind.DATA, content[start : start + BLOCK_BYTES])
        until(lambda: web.to_client.confirmed)
        assert all(connection.ping().wait(20) for connection in web.connections)
        web.drop(CloseCode.ENDED, "the attempt was released")
        output, errors = process.communicate(timeout=60)
    assert output == content
    assert b"the attempt was released" in errors


def test_output_that_cannot_be_written_ends_the_command_at_once(web: ExecWeb) -> None:
    with piped(web) as process:
        until(lambda: web.connections)
        assert process.stdout is not None
        process.stdout.close()
        web.send(FrameKind.DATA, b"into a closed pipe")
        assert process.wait(60) == 1
        assert process.stderr is not None
        assert b"BrokenPipeError" in process.stderr.read()


def test_error_of_the_library_is_not_written(web: ExecWeb) -> None:
    def end(connection: ServerConnection, message: bytes) -> bool:
        web.exit(7)
        return True

    web.on_message = end
    process = subprocess.run(
        [sys.executable, "-c", FAILING_PINGS + ATTACH, web.url, "", ""],
        input=b"",
        capture_output=True,
        timeout=60,
    )
    assert (process.returncode, process.stderr) == (7, b"")


@pytest.mark.parametrize("code", [CloseCode.ENDED, CloseCode.NOT_PERMITTED, CloseCode.REPLACED])
def test_session_that_ends_without_its_program_is_an_error(web: ExecWeb, code: CloseCode) -> None:
    with piped(web) as process:
        until(lambda: web.connections)
        web.drop(code, "the attempt was released")
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1  # the command maps it to 255
    assert b"SessionLost: the session is over: the attempt was released" in errors


def test_exit_code_may_come_with_the_document_only(web: ExecWeb) -> None:
    web.document |= {"state": "ENDED", "exit_code": 7}
    with piped(web) as process:
        until(lambda: web.connections)
        assert process.stdin is not None
        process.stdin.write(b"x")
        process.stdin.flush()
        web.wait_for(web.to_cell, lambda: web.to_cell.frames)
        web.drop(CloseCode.ENDED)
        assert process.wait(60) == 7


def test_reason_in_the_document_explains_the_end(web: ExecWeb) -> None:
    web.document |= {"state": "ENDED", "exit_code": None, "reason": "the attempt was released"}
    with piped(web) as process:
        until(lambda: web.connections)
        web.drop(CloseCode.ENDED)
        _, errors = process.communicate(timeout=60)
    assert b"SessionLost: the session is over: the attempt was released" in errors


def test_first_interrupt_is_for_the_program_and_the_second_leaves(web: ExecWeb) -> None:
    with piped(web) as process:
        until(lambda: web.connections)
        assert process.stdout is not None
        web.send(FrameKind.DATA, b"ready\n")
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        web.wait_for(web.to_cell, lambda: web.to_cell.frames)
        assert web.to_cell.frames[0].kind is FrameKind.SIGNAL
        assert web.to_cell.frames[0].payload == b"\x02"
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert b"KeyboardInterrupt" in errors


def test_keys_pass_unchanged_and_the_terminal_is_restored(web: ExecWeb) -> None:
    with on_terminal(web) as (process, ours, theirs):
        before = termios.tcgetattr(theirs)
        until(lambda: is_raw(theirs))
        os.write(ours, b"ls\r\x03\x04\x1a\x11")
        web.wait_for(web.to_cell, lambda: web.to_cell.content() == b"ls\r\x03\x04\x1a\x11")
        web.send(FrameKind.DATA, b"\x1b[1mbold\r\n")
        assert b"\x1b[1mbold\r\n" in read_until(ours, b"bold\r\n")
        web.exit(5)
        assert process.wait(60) == 5
        assert termios.tcgetattr(theirs) == before


def test_size_is_sent_first_and_at_each_change(web: ExecWeb) -> None:
    with on_terminal(web) as (process, _, theirs):
        termios.tcsetwinsize(theirs, (33, 77))
        os.killpg(process.pid, 0)
        until(lambda: is_raw(theirs))
        process.send_signal(signal.SIGWINCH)
        web.wait_for(
            web.to_cell, lambda: [read_size(f) for f in web.to_cell.frames][-1:] == [(33, 77)]
        )
        termios.tcsetwinsize(theirs, (44, 88))
        process.send_signal(signal.SIGWINCH)
        web.wait_for(web.to_cell, lambda: read_size(web.to_cell.frames[-1]) == (44, 88))
        assert {frame.kind for frame in web.to_cell.frames} == {FrameKind.RESIZE}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_terminal_is_restored_when_the_command_is_ended(web: ExecWeb, number: int) -> None:
    with on_terminal(web) as (process, _, theirs):
        before = termios.tcgetattr(theirs)
        until(lambda: is_raw(theirs) and web.connections)
        process.send_signal(number)
        assert process.wait(60) == 128 + number
        assert termios.tcgetattr(theirs) == before


@pytest.mark.parametrize("message", [b"", b"\x99" + bytes(8), b"\x01" + bytes(7) + b"\x09x"])
def test_terminal_is_restored_after_a_hostile_frame(web: ExecWeb, message: bytes) -> None:
    with on_terminal(web) as (process, ours, theirs):
        before = termios.tcgetattr(theirs)
        until(lambda: is_raw(theirs) and web.connections)
        web.connections[0].send(message)
        shown = read_until(ours, b"malformed frame")
        assert b"malformed frame" in shown
        assert process.wait(60) == 1
        assert termios.tcgetattr(theirs) == before


def test_terminal_is_restored_when_the_output_cannot_be_written(web: ExecWeb) -> None:
    ours, theirs = pty.openpty()
    read_end, write_end = os.pipe()
    before = termios.tcgetattr(theirs)
    command = words(web, tty=True, stdin=True)
    with subprocess.Popen(
        command, stdin=theirs, stdout=write_end, stderr=subprocess.DEVNULL
    ) as process:
        os.close(write_end)
        until(lambda: is_raw(theirs) and web.connections)
        os.close(read_end)
        web.send(FrameKind.DATA, b"into a closed pipe")
        assert process.wait(60) != 0
        assert termios.tcgetattr(theirs) == before
    os.close(ours)
    os.close(theirs)


def test_refused_stream_is_final(web: ExecWeb) -> None:
    web.refuses = 404
    with piped(web) as process:
        _, errors = process.communicate(timeout=60)
    assert b"not here [404]" in errors
    assert len(web.requests) == 1


def test_command_without_an_input_reads_none(web: ExecWeb) -> None:
    with piped(web, stdin=False) as process:
        assert process.stdin is not None
        process.stdin.write(b"unread")
        process.stdin.flush()
        until(lambda: web.connections)
        web.exit(0)
        assert process.wait(60) == 0
    assert web.to_cell.frames == []
