"""An HTTP server on a real port with the answers of a test, which records its requests."""

import json
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Answer:
    """The next answers to `METHOD /path`; the last one is repeated."""

    status: int
    body: Any
    headers: dict[str, str] = field(default_factory=dict)


class Api:
    """The server; `answers` maps "GET /api/v1/jobs" to a list of answers."""

    def __init__(self, port: int = 0) -> None:
        self.answers: dict[str, list[Answer]] = {}
        self.files: dict[str, bytes] = {}
        """Contents by path, of which a client may request the end by Range."""
        self.cuts: list[int] = []
        """Numbers of bytes after which the next responses with files end early."""
        self.resume = threading.Event()
        """Whether a response that ends early does so at once."""
        self.resume.set()
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler_of(self))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def answer(self, call: str, body: Any, status: int = 200, **headers: str) -> None:
        """Answer `call` with `body` from now on, after the answers set before."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.answers.setdefault(call, []).append(Answer(status, body, named))

    def close(self) -> None:
        """Stop."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler_of(api: Api) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            sent = json.loads(self.rfile.read(length)) if length else None
            path, _, query = self.path.partition("?")
            api.requests.append((f"{self.command} {path}", query, dict(self.headers), sent))
            if path in api.files:
                self._serve_file(api.files[path])
                return
            queue = api.answers.get(f"{self.command} {path}")
            answer = Answer(404, {"title": "Not Found", "detail": f"no {path}"})
            if queue:
                answer = queue.pop(0) if len(queue) > 1 else queue[0]
            body = answer.body
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if answer.status == 204:  # a response without a body, and so without its length
                self.end_headers()
                return
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _serve_file(self, content: bytes) -> None:
            start = int((self.headers.get("Range") or "bytes=0-")[6:-1])
            self.send_response(206 if start else 200)
            if start:
                last = len(content) - 1
                self.send_header("Content-Range", f"bytes {start}-{last}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            if not api.cuts:
                with suppress(ConnectionError):  # the client may have enough of it
                    self.wfile.write(content[start:])
                return
            self.wfile.write(content[start:][: api.cuts.pop(0)])
            api.resume.wait(60)
            self.close_connection = True

        # The names that http.server calls.
        do_GET = do_POST = do_PUT = do_DELETE = _serve  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    return Handler
