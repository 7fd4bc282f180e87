"""A receiver of callbacks on a port of its own, whose path selects its behaviour."""

import json
import socketserver
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

ANSWER = b"HTTP/1.1 %d Any\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"
NOTHING = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n"
DEADLINE_SECONDS = 20.0


@dataclass(frozen=True)
class Received:
    """One request that arrived."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> dict[str, Any]:
        """The body as JSON."""
        return dict(json.loads(self.body))


class Receiver(socketserver.ThreadingTCPServer):
    """Use as a context manager. `/<status>` answers so; see `_Connection` for other paths."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        self._tls = tls
        self.received: list[Received] = []
        self.open = self.most_open = 0
        self.answers: dict[str, int | str] = {}
        self.changed = threading.Condition()
        self.released = threading.Event()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)

    def __enter__(self) -> "Receiver":
        self._thread.start()
        return self

    def __exit__(self, *fault: object) -> None:
        self.released.set()
        self.shutdown()
        self._thread.join()
        self.server_close()

    def get_request(self) -> tuple[Any, Any]:
        """A connection, once it is encrypted if it is to be."""
        made, address = super().get_request()
        return (self._tls.wrap_socket(made, server_side=True) if self._tls else made), address

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.server_address[1]}/{path}"

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        """Return when `holds()`; fail, naming `what`, if it does not come to that."""
        give_up = time.monotonic() + DEADLINE_SECONDS
        with self.changed:
            while not holds():
                left = give_up - time.monotonic()
                assert left > 0, f"not so: {what}; {len(self.received)} received"
                self.changed.wait(min(left, 0.05))

    def wait_for(self, count: int) -> list[Received]:
        """The requests, once there are `count`."""
        self.wait_until(lambda: len(self.received) >= count, f"{count} requests")
        return list(self.received)

    def note(self, request: Received | None, opened: int) -> None:
        with self.changed:
            self.open += opened
            self.most_open = max(self.most_open, self.open)
            if request is not None:
                self.received.append(request)
            self.changed.notify_all()


class _Connection(socketserver.StreamRequestHandler):
    server: Receiver

    def receive(self) -> None:
        line = self.rfile.readline().decode()
        headers: dict[str, str] = {}
        while (header := self.rfile.readline().decode().strip()) != "":
            name, _, value = header.partition(": ")
            headers[name] = value
        body = self.rfile.read(int(headers.get("Content-Length", "0")))
        path = line.split(" ")[1].lstrip("/")
        self.server.note(Received(path, headers, body), +1)
        try:
            self._answer(self.server.answers.get(path, path))
        except OSError:
            pass  # the client has gone
        finally:
            self.server.note(None, -1)

    handle = receive  # as the framework calls it

    def _answer(self, path: str | int) -> None:
        word = str(path).split("-")[0].split("?")[0]
        if word.isdigit():
            self._write(NOTHING if word == "204" else ANSWER % int(word))
        elif word == "hang":
            self.server.released.wait(DEADLINE_SECONDS)
        elif word == "wait":
            self.server.released.wait(DEADLINE_SECONDS)
            self._write(ANSWER % 200)
        elif word == "headers":
            self._write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
            self.server.released.wait(DEADLINE_SECONDS)
        elif word == "redirect":
            place = self.server.url("200").encode()
            self._write(b"HTTP/1.1 301 Moved\r\nLocation: " + place + b"\r\n\r\n")
        elif word == "garbage":
            self._write(b"\x00\xff" * 2_000 + b"\r\n\r\n")
        elif word == "huge":
            self._write(b"HTTP/1.1 200 OK\r\nX-Large: " + b"x" * 1_000_000 + b"\r\n\r\n")
        elif word == "hints":
            self._drip(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 1_000, 0)
        elif word == "endless":
            self._write(b"HTTP/1.1 200 OK\r\n\r\n")
            self._drip(b"x" * 65_536, 0)
        elif word == "slow":
            self._write(b"HTTP/1.1 200 OK\r\n")
            self._drip(b"X-More: yes\r\n", 0.05)
        # else: closed without an answer

    def _drip(self, part: bytes, pause: float) -> None:
        while not self.server.released.wait(pause):
            self._write(part)

    def _write(self, part: bytes) -> None:
        self.wfile.write(part)
        self.wfile.flush()
