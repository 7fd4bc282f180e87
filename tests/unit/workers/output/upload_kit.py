"""A cell that uploads output, and the control plane's side of it, which counts bytes."""

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from controlplane.contract.output_batch import OutputPiece, unpack_pieces
from controlplane.contract.wire import keys
from tests.harness.web import Answer, Request, Web
from workers.output.shipper import LogShipper

KEY = b"k" * keys.KEY_BYTES
NOW = 1_795_000_000.0


class Store:
    """The control plane's side: appends where the offset fits."""

    def __init__(self, web: Web) -> None:
        self.logs: dict[str, bytes] = {}
        self.unknown: set[str] = set()
        self.full: set[str] = set()
        self.fails = 0
        self.refused: set[str] = set()
        self.tries = 0  # of refused ones
        self.batches: list[set[str]] = []  # the streams of each request for several attempts
        self.answer_batch = self.append_batch
        web.route = self.answer

    def answer(self, request: Request) -> Answer:
        parts = urlsplit(request.path)
        headers = {name.lower(): value for name, value in request.headers.items()}
        digest = hashlib.sha256(request.body).hexdigest()
        text = f"cell-1\n{headers['x-cellrun-time']}\n{request.path}\n{digest}"
        assert headers["x-cellrun-cell"] == "cell-1"
        assert int(headers["x-cellrun-time"]) == int(NOW)
        upload_key = keys.mac_key(KEY, keys.UPLOAD)
        assert keys.is_signed(upload_key, text, headers["x-cellrun-mac"])
        if request.method == "POST":
            assert parts.path == "/api/v1/logs:batch"
            pieces = unpack_pieces(request.body)
            self.batches.append({f"{it.uid}/{it.stream}" for it in pieces})
            return self.answer_batch(pieces)
        *_, uid, _, stream = parts.path.split("/")
        offset = int(parse_qs(parts.query)["offset"][0])
        status = self.append(uid, stream, offset, request.body)
        size = len(self.logs.get(f"{uid}/{stream}", b""))
        return Answer(status, json.dumps({"size": size}).encode())

    def append(self, uid: str, stream: str, offset: int, content: bytes) -> int:
        if self.fails:
            self.fails -= 1
            return 503
        if uid in self.unknown:
            return 404
        if uid in self.refused:
            self.tries += 1
            return 507
        key = f"{uid}/{stream}"
        log = self.logs.get(key, b"")
        if offset != len(log):
            return 409
        self.logs[key] = log + content
        return 410 if key in self.full else 200

    def append_batch(self, pieces: list[OutputPiece]) -> Answer:
        failed = {
            it.uid for it in pieces if self.append(it.uid, it.stream, it.offset, it.content) != 200
        }
        stored = sorted({it.uid for it in pieces} - failed)
        return Answer(200, json.dumps({"stored": stored, "untried": []}).encode())


class Cell:
    """A cell's folder of output, and its shipper of the moment."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.shippers: list[LogShipper] = []
        self.shipper = self.begin()

    def begin(
        self,
        *,
        round_seconds: float = 0.02,
        short_seconds: float = 0.0,
        timer: Callable[[], float] = time.monotonic,
    ) -> LogShipper:
        self.shipper = LogShipper(
            control_url=self.url,
            cell="cell-1",
            key=KEY,
            folder=self.folder,
            now=lambda: NOW,
            round_seconds=round_seconds,
            short_seconds=short_seconds,
            timer=timer,
        )
        self.shippers.append(self.shipper)
        return self.shipper

    def write(self, uid: str, content: bytes, stream: str = "stdout") -> Path:
        (self.folder / uid).mkdir(parents=True, exist_ok=True)
        with open(self.folder / uid / stream, "ab") as file:
            file.write(content)
        return self.folder / uid
