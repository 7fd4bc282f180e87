"""A web server for cells that store files: it answers launch contexts and takes the files."""

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from controlplane.contract.artifacts import CHECKPOINT
from controlplane.contract.messages.launch_context import LaunchContext
from controlplane.contract.wire import keys
from controlplane.domain.cells.sealing import NONCE_BYTES, seal
from tests.conformance.kit import Kit
from tests.harness.web import Answer, Request, Web
from workers.attempt.events import EndedEvent
from workers.drivers.registry import make_driver


@dataclass(slots=True)
class Keeper:
    """Answers a cell from memory. `before` may answer a PUT in its place.

    `link_to`: where a file of this path is sent by PUT; `find`: its size there.
    """

    web: Web
    kept: dict[str, dict[str, bytes]]
    drafts: dict[str, bytes]
    launch_contexts: dict[str, LaunchContext]
    before: Callable[[Request], Answer | None]
    link_to: Callable[[str], str | None]
    find: Callable[[str], int]

    def __init__(self, web: Web) -> None:
        self.web, self.kept, self.drafts, self.launch_contexts = web, {}, {}, {}
        self.before = lambda request: None
        self.link_to, self.find = lambda path: None, lambda path: -1
        web.route = self._answer

    def serve(self, kit: Kit, **config: Any) -> None:
        """Begin a new process of the cell that uses this server."""
        kit.driver.close()
        made = kit.config(control_url=self.web.url, **config)
        kit.driver = make_driver(made, kit.events, back_off=(0.05, 0.1))

    def brief(self, uid: str, **fields: Any) -> None:
        """Set the launch context of the attempt."""
        self.launch_contexts[uid] = LaunchContext(**fields)

    def puts(self) -> list[str]:
        """The names under which something was put, in order."""
        found = [r.path for r in self.web.requests if r.method == "PUT" and "/artifacts/" in r.path]
        return [unquote(urlsplit(path).path.partition("/artifacts/")[2]) for path in found]

    def checkpoint_of(self, ended: EndedEvent) -> dict[str, Any]:
        """Return the checkpoint of an attempt, as web sends it to the next attempt."""
        assert ended.outputs is not None, ended
        (entry,) = ended.outputs
        assert entry["name"] == CHECKPOINT
        self.web.files["/left"] = self.kept[ended.uid][CHECKPOINT]
        return {**entry, "url": f"{self.web.url}/left"}

    def _answer(self, request: Request) -> Answer:
        if request.path in self.web.files:
            return Answer(200, self.web.files[request.path])
        parts = urlsplit(request.path)
        words = parts.path.split("/")
        if words[-1] == "briefing":
            return self._brief(words[4], request)
        if words[5:6] == ["artifacts"] and request.method == "PUT":
            return self.before(request) or self._put(words[4], parts.path, parts.query, request)
        if words[5:6] == ["artifacts"] and request.method == "POST":
            return self._announce(parts.path, parts.query)
        return Answer(404)  # also for output, which is kept here and nowhere else

    def _brief(self, uid: str, request: Request) -> Answer:
        text = json.dumps(self.launch_contexts.get(uid, LaunchContext()).body()).encode()
        key, mac = keys.mac_key(b"k" * 32, keys.SEAL), request.headers["X-Cellrun-Mac"]
        about = keys.about_answer(cell="cell-1", attempt=uid, endpoint="briefing", mac=mac)
        return Answer(200, seal(key, text, about=about, nonce=os.urandom(NONCE_BYTES)))

    def _announce(self, path: str, query: str) -> Answer:
        here = self.drafts.get(f"{path} {parse_qs(query)['sha256'][0]}", b"")
        state = {"size": len(here), "url": self.link_to(path), "headers": {}}
        return Answer(200, json.dumps(state).encode())

    def _put(self, uid: str, path: str, query: str, request: Request) -> Answer:
        parameters = {name: values[0] for name, values in parse_qs(query).items()}
        if not request.body and int(parameters["size"]) == self.find(path):
            return Answer(200, json.dumps({"size": int(parameters["size"])}).encode())
        draft = f"{path} {parameters['sha256']}"
        here = self.drafts.get(draft, b"")
        if len(here) == int(parameters["offset"]) < int(parameters["size"]) or not here:
            here = self.drafts[draft] = here + request.body
        if len(here) == int(parameters["size"]):
            assert hashlib.sha256(here).hexdigest() == parameters["sha256"]
            name = unquote(path.partition("/artifacts/")[2])
            self.kept.setdefault(uid, {})[name] = here
        return Answer(200, json.dumps({"size": len(here)}).encode())
