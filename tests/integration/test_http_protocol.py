"""Web closes connections without a complete header, and no others."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
import uvicorn

from controlplane.config import http_protocol
from controlplane.config.http_protocol import PromptHeaders

USUAL_HEADER_SECONDS = http_protocol.HEADER_SECONDS
HEADER_SECONDS, DEADLINE_SECONDS = 0.3, 20.0
MOST = 4
HALF = b"GET / HTTP/1.1\r\nHost: localhost\r\n"


class Application:
    """Answers after `may_answer`, with the length of the body."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        length, more = 0, True
        while more:
            message = await receive()
            length += len(message.get("body", b""))
            more = message.get("more_body", False)
        await asyncio.to_thread(self.may_answer.wait, DEADLINE_SECONDS)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(length).encode()})


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
