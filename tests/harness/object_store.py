"""A real S3 server on loopback, and a proxy in front of it whose faults a test decides."""

import http.client
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import requests

from controlplane.config.stack.parts.ports import free_port

READY_SECONDS = 30.0
_HOP = ("connection", "transfer-encoding", "content-length", "date", "server")


@contextmanager
def s3_server(folder: Path) -> Iterator[str]:
    """Start a server with an empty bucket `bucket`; yield its URL."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with (folder / "s3.log").open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=output,
            stderr=output,
        )
    try:
        end = time.monotonic() + READY_SECONDS
        while not _answers(url):
            assert time.monotonic() < end, (folder / "s3.log").read_text()
            time.sleep(0.1)
        assert requests.put(f"{url}/bucket", timeout=10).status_code == 200
        yield url
    finally:
        server.terminate()
        server.wait()


def _answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=1).ok
    except requests.RequestException:
        return False


def s3_environment(url: str) -> dict[str, str]:
    """Return the variables that lead a client to the server."""
    return {
        "AWS_ACCESS_KEY_ID": "cellrun",
        "AWS_SECRET_ACCESS_KEY": "hush",
        "AWS_ENDPOINT_URL": url,
        "AWS_DEFAULT_REGION": "us-east-1",
    }


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Set variables of this process."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@dataclass(frozen=True, slots=True)
class StoreRequest:
    """A request as the proxy received it."""

    method: str
    path: str
    length: int


class Fault:
    """What becomes of a request: an HTTP status, or one of the constants."""

    CUT = -1  # the connection ends after half of the body
    LOST = -2  # the request is carried out, but its answer is lost
    HANGS = -3  # there is no answer until the proxy is closed


Faults = Callable[[StoreRequest], int | None]


class FaultyProxy:
    """Forwards all requests to a server; `faults` returns the fault of a request, or None.

    `port`: where it listens; a free one by default.
    """

    def __init__(self, target: str, *, port: int = 0) -> None:
        self.faults: Faults = lambda request: None
        self.seen: list[StoreRequest] = []
        self.closed = threading.Event()
        self._connections: set[socket.socket] = set()
        host = target.removeprefix("http://")
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                proxy._connections.add(self.connection)

            def finish(self) -> None:
                proxy._connections.discard(self.connection)
                super().finish()

            def handle_any(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                request = StoreRequest(self.command, self.path, length)
                proxy.seen.append(request)
                fault = proxy.faults(request)
                if fault == Fault.CUT:
                    self.rfile.read(length // 2)
                    self.close_connection = True
                    return
                body = self.rfile.read(length)
                if fault == Fault.HANGS:
                    proxy.closed.wait()
                    self.close_connection = True
                    return
                if fault is not None and fault > 0:
                    self._answer(fault, [], b"<Error><Code>SlowDown</Code></Error>")
                    return
                server = http.client.HTTPConnection(host, timeout=30)
                headers = dict(self.headers.items())
                server.request(self.command, self.path, body, headers)
                answer = server.getresponse()
                content = answer.read()
                server.close()
                if fault == Fault.LOST:
                    self.close_connection = True
                    return
                self._answer(answer.status, answer.getheaders(), content)

            do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815

            def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
                self.send_response(status)
                length = str(len(body))
                for name, value in headers:
                    if name.lower() == "content-length" and self.command == "HEAD":
                        length = value
                    elif name.lower() not in _HOP:
                        self.send_header(name, value)
                self.send_header("Content-Length", length)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        """Stop the proxy, and cut its connections, which clients keep for later requests."""
        self.closed.set()
        self._server.shutdown()
        self._server.server_close()
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
