"""Output arrives whole at a server that counts bytes, whatever it answers in between."""

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from controlplane.contract.output_batch import OutputPiece, unpack_pieces
from controlplane.contract.wire import keys
from tests.conformance.kit import until
from tests.harness.web import Answer, Request, Web
from workers.output.shipper import CHUNK_BYTES, SHIPPED, LogShipper

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
        return Answer(200, json.dumps({"stored": stored}).encode())


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


@pytest.fixture
def web() -> Iterator[Web]:
    with Web() as web:
        yield web


@pytest.fixture
def store(web: Web) -> Store:
    return Store(web)


@pytest.fixture
def cell(tmp_path: Path, web: Web, store: Store) -> Iterator[Cell]:
    cell = Cell(tmp_path, web.url)
    yield cell
    for shipper in cell.shippers:
        shipper.close()


def test_output_is_shipped_while_it_is_written(cell: Cell, store: Store) -> None:
    cell.shipper.start()
    cell.shipper.watch("a", cell.write("a", b"one\n"))
    until(lambda: store.logs.get("a/stdout") == b"one\n")
    cell.write("a", b"\x00\xff\n")
    cell.write("a", b"err\n", "stderr")
    until(lambda: store.logs == {"a/stdout": b"one\n\x00\xff\n", "a/stderr": b"err\n"})


def test_finish_ships_remaining_output_before_returning(cell: Cell, store: Store) -> None:
    content = b"0123456789" * (CHUNK_BYTES // 4)
    cell.shipper.watch("a", cell.write("a", content))
    cell.shipper.finish("a", 30)
    assert store.logs["a/stdout"] == content
    assert (cell.folder / "a" / SHIPPED).exists()


def test_finish_without_output_sends_no_request(cell: Cell, web: Web) -> None:
    cell.shipper.watch("a", cell.write("a", b""))
    cell.shipper.finish("a", 30)
    assert web.requests == []


def test_shipping_resumes_at_the_size_known_to_the_server(cell: Cell, store: Store) -> None:
    store.logs["a/stdout"] = b"one\n"
    cell.shipper.watch("a", cell.write("a", b"one\ntwo\n"))
    cell.shipper.finish("a", 30)
    assert store.logs["a/stdout"] == b"one\ntwo\n"


def test_output_lost_by_the_server_is_sent_again(cell: Cell, store: Store) -> None:
    cell.shipper.watch("a", cell.write("a", b"one\n"))
    cell.shipper.send_round()
    store.logs["a/stdout"] = b"on"
    cell.write("a", b"two\n")
    cell.shipper.finish("a", 30)
    assert store.logs["a/stdout"] == b"one\ntwo\n"


def test_shipping_stops_for_an_attempt_unknown_to_the_server(
    cell: Cell, store: Store, web: Web
) -> None:
    store.unknown.add("a")
    cell.shipper.watch("a", cell.write("a", b"one\n"))
    cell.shipper.send_round()
    cell.write("a", b"two\n")
    cell.shipper.finish("a", 30)
    assert len(web.requests) == 1


def test_stream_that_ended_is_not_sent_further_and_the_other_arrives(
    cell: Cell, store: Store, web: Web
) -> None:
    store.full.add("a/stdout")
    cell.write("a", b"one\n")
    cell.shipper.watch("a", cell.write("a", b"Traceback\n", "stderr"))
    cell.shipper.send_round()
    cell.write("a", b"two\n")
    cell.write("a", b"ValueError\n", "stderr")
    cell.shipper.finish("a", 30)
    assert store.logs == {"a/stdout": b"one\n", "a/stderr": b"Traceback\nValueError\n"}
    assert len(web.requests) == 3
    assert (cell.folder / "a" / SHIPPED).exists()


def test_output_unsent_at_finish_is_shipped_in_the_background(cell: Cell, store: Store) -> None:
    store.fails = 4
    cell.shipper.watch("a", cell.write("a", b"one\n"))
    cell.shipper.finish("a", 30)
    assert store.logs == {}
    cell.shipper.start()
    until(lambda: store.logs == {"a/stdout": b"one\n"})
    until((cell.folder / "a" / SHIPPED).exists)


def test_next_process_ships_output_left_by_the_previous_one(cell: Cell, store: Store) -> None:
    cell.write("done", b"not again\n")
    (cell.folder / "done" / SHIPPED).touch()
    cell.write("left", b"one\n")
    cell.begin().start()
    until((cell.folder / "left" / SHIPPED).exists)
    assert store.logs == {"left/stdout": b"one\n"}


def test_sweep_removes_old_output_but_not_watched_output(tmp_path: Path) -> None:
    shipper = LogShipper(
        control_url="", cell="cell-1", key=KEY, folder=tmp_path, now=lambda: NOW + 10**9
    )
    (tmp_path / "old").mkdir()
    (tmp_path / "watched").mkdir()
    shipper.watch("watched", tmp_path / "watched")
    shipper.sweep()
    shipper.close()
    assert [path.name for path in tmp_path.iterdir()] == ["watched"]
