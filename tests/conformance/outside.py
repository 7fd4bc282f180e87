"""A real HTTP server for runners: jobs of a service, and the launch context of an attempt."""

import base64
import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from controlplane.contract.codec import compact_json
from controlplane.contract.messages.launch_context import LaunchContext
from controlplane.contract.wire import keys
from controlplane.domain.cells import sealing


@dataclass(slots=True)
class OutsideJob:
    """One job of the service. `begun`: how often it was begun; a second time would be a fault."""

    command: list[str]
    begun: int = 1
    state: str = "running"
    lines: list[str] = field(default_factory=list)
    result: str = ""
    message: str = ""

    def body(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "lines": self.lines,
            "result": self.result,
            "message": self.message,
        }


class Outside:
    """The service. `files`: inputs, by path; `launch_contexts`: what web would answer, by uid."""

    def __init__(self, *, cell: str = "cell-1", key: bytes = b"k" * 32) -> None:
        self.jobs: dict[str, OutsideJob] = {}
        self.files: dict[str, bytes] = {}
        self.launch_contexts: dict[str, LaunchContext] = {}
        self.requests: list[tuple[str, str]] = []
        self.cancels_at_once = True
        # A request of this method is carried out, and its answer never comes.
        self.holds = ""
        self.held = threading.Event()
        self.may_answer = threading.Event()
        self._cell = cell
        self._seal_key = keys.mac_key(key, keys.SEAL)
        outside = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                status, content = outside.answer(
                    self.command, self.path, body, self.headers.get("X-Cellrun-Mac", "")
                )
                if self.command == outside.holds and self.path.startswith("/jobs/"):
                    outside.held.set()
                    outside.may_answer.wait()
                    self.close_connection = True
                    return
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def do_GET(self) -> None:
                self._answer()

            def do_PUT(self) -> None:
                self._answer()

            def do_POST(self) -> None:
                self._answer()

            def do_DELETE(self) -> None:
                self._answer()

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), daemon=True
        )

    def __enter__(self) -> "Outside":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.may_answer.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def finish(self, key: str, **facts: Any) -> None:
        """End the job, or add a line to its log."""
        for name, value in facts.items():
            setattr(self.jobs[key], name, value)

    def count_requests(self, method: str, key: str) -> int:
        """Return the number of requests for a job with this method."""
        return self.requests.count((method, f"/jobs/{key}"))

    def answer(self, method: str, path: str, body: bytes, mac: str) -> tuple[int, bytes]:
        """What a request is answered."""
        self.requests.append((method, path))
        parts = path.strip("/").split("/")
        if parts[0] == "jobs":
            return self._answer_for_job(method, parts[1], json.loads(body) if body else {})
        if path in self.files:
            return 200, self.files[path]
        if method == "POST" and parts[-1] == "briefing":
            return 200, self._sealed(parts[-2], mac)
        return 404, b"{}"

    def _answer_for_job(self, method: str, key: str, body: Mapping[str, Any]) -> tuple[int, bytes]:
        job = self.jobs.get(key)
        if method == "PUT":
            if job is None:
                job = self.jobs[key] = OutsideJob(list(body["command"]))
            else:
                job.begun += 1
        if job is None:
            return 404, b"{}"
        if method == "DELETE" and self.cancels_at_once and job.state == "running":
            job.state = "cancelled"
        return 200, json.dumps(job.body()).encode()

    def _sealed(self, uid: str, mac: str) -> bytes:
        context = self.launch_contexts.get(uid, LaunchContext())
        text = compact_json(context.body()).encode()
        about = keys.about_answer(cell=self._cell, attempt=uid, endpoint="briefing", mac=mac)
        return sealing.seal(self._seal_key, text, about=about, nonce=os.urandom(12))


def secret(value: str) -> str:
    """Encode a value as a launch context does."""
    return base64.b64encode(value.encode()).decode()
