"""Web closes connections without a complete header or a valid handshake, and no others."""

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
import uvicorn

from controlplane.config import http_protocol
from controlplane.config.http_protocol import PromptHeaders, PromptWebSockets

USUAL_HEADER_SECONDS = http_protocol.HEADER_SECONDS
HEADER_SECONDS, DEADLINE_SECONDS = 0.3, 20.0
MOST = 4
HALF = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
UPGRADE = (
    b"Host: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
)


class Application:
    """Answers after `may_answer`, with the length of the body.

    Of WebSockets it refuses those at /refused, and sends on others until they end.
    """

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.has_left = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await self._serve_stream(scope, receive, send)
            return
        length, more = 0, True
        while more:
            message = await receive()
            length += len(message.get("body", b""))
            more = message.get("more_body", False)
        await asyncio.to_thread(self.may_answer.wait, DEADLINE_SECONDS)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(length).encode()})

    async def _serve_stream(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        if scope["path"] == "/refused":
            await send({"type": "websocket.http.response.start", "status": 401, "headers": []})
            await send({"type": "websocket.http.response.body", "body": b""})
            return
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            await send({"type": "websocket.send", "bytes": b"alive"})
        self.has_left.set()
        await send({"type": "websocket.send", "bytes": b"late"})


@pytest.fixture
def application() -> Application:
    return Application()


@pytest.fixture
def connect(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], socket.socket]]:
    """Connects to uvicorn with our protocol and a short time for headers."""
    monkeypatch.setattr(http_protocol, "HEADER_SECONDS", HEADER_SECONDS)
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(
            application,
            http=PromptHeaders,
            ws=PromptWebSockets,
            lifespan="off",
            log_config=None,
            limit_concurrency=MOST,
        )
    )
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    yield lambda: socket.create_connection(listening.getsockname(), timeout=DEADLINE_SECONDS)
    application.may_answer.set()
    server.should_exit = True
    thread.join(DEADLINE_SECONDS)
    listening.close()


def wait_until_half_a_request_is_closed(connect: Callable[[], socket.socket]) -> None:
    with closing(connect()) as half:
        half.sendall(HALF)
        assert half.recv(100) == b""


def test_time_for_a_header_is_ten_seconds() -> None:
    assert USUAL_HEADER_SECONDS == 10.0


@pytest.mark.parametrize("sent", [b"", b"G", HALF])
def test_a_connection_without_a_complete_header_is_closed(
    connect: Callable[[], socket.socket], sent: bytes
) -> None:
    with closing(connect()) as slow:
        slow.sendall(sent)
        assert slow.recv(100) == b""


def test_single_bytes_do_not_extend_the_time(connect: Callable[[], socket.socket]) -> None:
    began = time.monotonic()
    with closing(connect()) as slow:
        slow.sendall(HALF + b"X-Slow: ")
        slow.settimeout(0.02)
        while time.monotonic() - began < DEADLINE_SECONDS:
            try:
                slow.sendall(b"a")
                if slow.recv(100) == b"":
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        else:
            raise AssertionError("the connection is still open")


def test_a_request_whose_response_takes_longer_is_answered(
    application: Application, connect: Callable[[], socket.socket]
) -> None:
    with closing(connect()) as slow:
        slow.sendall(HALF + b"\r\n")
        wait_until_half_a_request_is_closed(connect)
        application.may_answer.set()
        assert slow.recv(100).startswith(b"HTTP/1.1 200")


def test_a_body_may_take_longer(
    application: Application, connect: Callable[[], socket.socket]
) -> None:
    application.may_answer.set()
    with closing(connect()) as slow:
        slow.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\na")
        wait_until_half_a_request_is_closed(connect)
        slow.sendall(b"b")
        assert slow.recv(1000).startswith(b"HTTP/1.1 200")


def test_the_second_request_of_a_connection_is_limited_too(
    application: Application, connect: Callable[[], socket.socket]
) -> None:
    application.may_answer.set()
    with closing(connect()) as kept:
        kept.sendall(HALF + b"\r\n")
        received = b""
        while not received.endswith(b"\r\n0\r\n\r\n"):  # the last chunk
            received += kept.recv(1000)
        kept.sendall(HALF)
        assert kept.recv(100) == b""


def test_requests_beyond_the_limit_of_connections_are_refused_until_the_others_are_closed(
    application: Application, connect: Callable[[], socket.socket]
) -> None:
    application.may_answer.set()
    with ExitStack() as ends:
        halves = [ends.enter_context(closing(connect())) for _ in range(MOST - 1)]
        for half in halves:
            half.sendall(HALF)
        refused = ends.enter_context(closing(connect()))
        refused.sendall(HALF + b"\r\n")
        assert refused.recv(100).startswith(b"HTTP/1.1 503")
        assert {half.recv(100) for half in halves} == {b""}
        answered = ends.enter_context(closing(connect()))
        answered.sendall(HALF + b"\r\n")
        assert answered.recv(100).startswith(b"HTTP/1.1 200")


def receive_all(connection: socket.socket) -> bytes:
    """Return what is received until the other end closes."""
    received = b""
    while True:
        try:
            block = connection.recv(10_000)
        except ConnectionResetError:
            return received
        if not block:
            return received
        received += block


HANDSHAKES = {
    "long path": (b"GET /" + b"x" * 9_000 + b" HTTP/1.1\r\n" + UPGRADE, b"414"),
    "long header": (b"GET / HTTP/1.1\r\n" + UPGRADE + b"X: " + b"x" * 9_000 + b"\r\n", b"431"),
    "300 headers": (b"GET / HTTP/1.1\r\n" + UPGRADE + b"X-A: 1\r\n" * 300, b"431"),
    "POST": (b"POST / HTTP/1.1\r\n" + UPGRADE, b"405"),
    "body": (b"POST / HTTP/1.1\r\n" + UPGRADE + b"Content-Length: 9\r\n", b"400"),
    "chunks": (b"GET / HTTP/1.1\r\n" + UPGRADE + b"Transfer-Encoding: chunked\r\n", b"400"),
    "no key": (b"GET / HTTP/1.1\r\n" + UPGRADE.partition(b"Sec-WebSocket-Key")[0], b"400"),
}


@pytest.mark.parametrize(("head", "status"), HANDSHAKES.values(), ids=HANDSHAKES)
def test_a_malformed_handshake_is_answered_and_closed_at_once(
    connect: Callable[[], socket.socket],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    head: bytes,
    status: bytes,
) -> None:
    monkeypatch.setattr(http_protocol, "HEADER_SECONDS", 10 * DEADLINE_SECONDS)
    with closing(connect()) as refused:
        refused.sendall(head + b"\r\n")
        assert receive_all(refused).startswith(b"HTTP/1.1 " + status)
    assert not [line for line in caplog.records if line.levelno >= logging.ERROR]


def test_connections_of_malformed_handshakes_are_not_kept(
    application: Application, connect: Callable[[], socket.socket]
) -> None:
    application.may_answer.set()
    with ExitStack() as ends:
        for _ in range(2 * MOST):
            refused = ends.enter_context(closing(connect()))
            refused.sendall(HANDSHAKES["300 headers"][0] + b"\r\n")
            receive_all(refused)
        answered = ends.enter_context(closing(connect()))
        answered.sendall(HALF + b"\r\n")
        assert answered.recv(100).startswith(b"HTTP/1.1 200")


def test_a_refused_handshake_is_answered_without_an_error_in_the_log(
    connect: Callable[[], socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    with closing(connect()) as refused:
        refused.sendall(b"GET /refused HTTP/1.1\r\n" + UPGRADE + b"\r\n")
        assert receive_all(refused).startswith(b"HTTP/1.1 401")
    assert not [line for line in caplog.records if line.levelno >= logging.ERROR]


NOT_UTF8 = {
    "one frame": b"\x81\x82" + bytes(4) + b"\xc3\x28",
    "two frames": b"\x01\x81" + bytes(4) + b"\xc3" + b"\x80\x81" + bytes(4) + b"\x28",
}


@pytest.mark.parametrize("frames", NOT_UTF8.values(), ids=NOT_UTF8)
def test_a_text_that_is_not_utf8_closes_the_stream_without_an_error_in_the_log(
    application: Application,
    connect: Callable[[], socket.socket],
    caplog: pytest.LogCaptureFixture,
    frames: bytes,
) -> None:
    with closing(connect()) as stream:
        stream.sendall(b"GET / HTTP/1.1\r\n" + UPGRADE + b"\r\n")
        received = b""
        while not received.endswith(b"\r\n\r\n"):
            received += stream.recv(1)
        assert received.startswith(b"HTTP/1.1 101")
        valid = "é".encode()
        stream.sendall(b"\x81\x82" + bytes(4) + valid)
        assert stream.recv(7) == b"\x82\x05alive"
        stream.sendall(frames)
        closed = receive_all(stream)
        assert (closed[0], closed[2:4]) == (0x88, (1007).to_bytes(2, "big"))
    assert application.has_left.wait(DEADLINE_SECONDS)
    assert not [line for line in caplog.records if line.levelno >= logging.ERROR]
