"""Output arrives whole at a server that counts bytes, whatever it answers in between."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, urlsplit

import pytest

from controlplane.contract.output_batch import unpack_pieces
from controlplane.contract.wire import keys
from tests.conformance.kit import until
from tests.harness.web import Answer, Request, Web
from workers.output.client import NoResponse, UploadDeferred
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
        self.refuses = 0
        self.is_dead = False
        self.takes_batches = True
        self.pieces: list[str] = []
        self.statuses: dict[str, int] = {}
        web.route = self.answer

    def answer(self, request: Request) -> Answer:
        if self.is_dead:
            raise ConnectionAbortedError
        headers = {name.lower(): value for name, value in request.headers.items()}
        digest = hashlib.sha256(request.body).hexdigest()
        text = f"cell-1\n{headers['x-cellrun-time']}\n{request.path}\n{digest}"
        assert headers["x-cellrun-cell"] == "cell-1"
        assert int(headers["x-cellrun-time"]) == int(NOW)
        upload_key = keys.mac_key(KEY, keys.UPLOAD)
        assert keys.is_signed(upload_key, text, headers["x-cellrun-mac"])
        if self.fails:
            self.fails -= 1
            return Answer(503)
        if self.refuses:
            return Answer(self.refuses)
        parts = urlsplit(request.path)
        if request.method == "POST":
            assert request.path == "/api/v1/logs:batch"
            if not self.takes_batches:
                return Answer(404)
            results = [self.append(*astuple(it)) for it in unpack_pieces(request.body)]
            document = [{"status": status, "size": size} for status, size in results]
            return Answer(200, json.dumps({"results": document}).encode())
        *_, uid, _, stream = parts.path.split("/")
        offset = int(parse_qs(parts.query)["offset"][0])
        status, size = self.append(uid, stream, offset, request.body)
        return Answer(status, json.dumps({"size": size}).encode())

    def append(self, uid: str, stream: str, offset: int, content: bytes) -> tuple[int, int | None]:
        name = f"{uid}/{stream}"
        self.pieces.append(name)
        if uid in self.statuses:
            return self.statuses[uid], None
        if uid in self.unknown:
            return 404, None
        log = self.logs.get(name, b"")
        if offset != len(log):
            return 409, len(log)
        self.logs[name] = log = log + content
        return 410 if name in self.full else 200, len(log)


class Cell:
    """A cell's folder of output, and its shipper of the moment."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self.shippers: list[LogShipper] = []
        self.shipper = self.begin()

    def begin(self, *, round_seconds: float = 0.02) -> LogShipper:
        self.shipper = LogShipper(
            control_url=self.url,
            cell="cell-1",
            key=KEY,
            folder=self.folder,
            now=lambda: NOW,
            round_seconds=round_seconds,
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


@pytest.fixture(params=["batches", "batches refused"])
def store(web: Web, request: pytest.FixtureRequest) -> Store:
    store = Store(web)
    store.takes_batches = request.param == "batches"
    return store


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


def test_shipping_stops_for_an_attempt_unknown_to_the_server(cell: Cell, store: Store) -> None:
    store.unknown.add("a")
    cell.shipper.watch("a", cell.write("a", b"one\n"))
    cell.shipper.send_round()
    cell.write("a", b"two\n")
    cell.shipper.finish("a", 30)
    assert store.pieces == ["a/stdout"]


def test_stream_that_ended_is_not_sent_further_and_the_other_arrives(
    cell: Cell, store: Store
) -> None:
    store.full.add("a/stdout")
    cell.write("a", b"one\n")
    cell.shipper.watch("a", cell.write("a", b"Traceback\n", "stderr"))
    cell.shipper.send_round()
    cell.write("a", b"two\n")
    cell.write("a", b"ValueError\n", "stderr")
    cell.shipper.finish("a", 30)
    assert store.logs == {"a/stdout": b"one\n", "a/stderr": b"Traceback\nValueError\n"}
    assert store.pieces == ["a/stdout", "a/stderr", "a/stderr"]
    assert (cell.folder / "a" / SHIPPED).exists()


def test_output_unsent_at_finish_is_shipped_in_the_background(cell: Cell, store: Store) -> None:
    store.fails = 3
    cell.shipper.watch("a", cell.write("a", b"one\n"))
    cell.shipper.finish("a", 30)
    assert store.logs == {}
    cell.shipper.start()
    until(lambda: store.logs == {"a/stdout": b"one\n"})
    until((cell.folder / "a" / SHIPPED).exists)


def test_outputs_that_end_together_arrive_in_few_requests(
    cell: Cell, store: Store, web: Web
) -> None:
    uids = [f"attempt-{number}" for number in range(100)]
    cell.begin(round_seconds=60)
    for uid in uids:
        cell.shipper.watch(uid, cell.write(uid, uid.encode()))
    ends = [Thread(target=cell.shipper.finish, args=(uid, 30)) for uid in uids]
    cell.shipper.start()
    for end in ends:
        end.start()
    for end in ends:
        end.join(30)
    assert store.logs == {f"{uid}/stdout": uid.encode() for uid in uids}
    assert all((cell.folder / uid / SHIPPED).exists() for uid in uids)
    if store.takes_batches:
        assert len(web.requests) < len(uids) / 2


def test_piece_refused_for_now_delays_no_other_and_is_sent_again(cell: Cell, store: Store) -> None:
    store.statuses["a"] = 507
    cell.shipper.watch("a", cell.write("a", b"one\n"))
    cell.shipper.watch("b", cell.write("b", b"two\n"))
    with pytest.raises(UploadDeferred):
        cell.shipper.send_round()
    assert store.logs == {"b/stdout": b"two\n"}
    del store.statuses["a"]
    cell.shipper.send_round()
    assert store.logs == {"a/stdout": b"one\n", "b/stdout": b"two\n"}


LONG = 3600.0
"""Seconds that no test takes: what waits for them is at an end too late."""


def end(cell: Cell, *uids: str) -> None:
    """End attempts at once, which wait for their output as long as they may."""
    threads = [Thread(target=cell.shipper.finish, args=(uid, LONG), daemon=True) for uid in uids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads), "the end of an attempt waits"


@pytest.mark.parametrize("refusal", [503, 401, 500])
def test_end_of_an_attempt_does_not_wait_while_uploads_are_refused(
    cell: Cell, store: Store, refusal: int
) -> None:
    store.refuses = refusal
    cell.begin(round_seconds=LONG).start()
    for uid in ("a", "b"):
        cell.shipper.watch(uid, cell.write(uid, b"one\n"))
    end(cell, "a", "b")
    assert store.logs == {}


def test_end_of_an_attempt_does_not_wait_for_a_control_plane_that_is_away(tmp_path: Path) -> None:
    cell = Cell(tmp_path, "http://127.0.0.1:1")
    cell.begin(round_seconds=LONG).start()
    for uid in ("a", "b"):
        cell.shipper.watch(uid, cell.write(uid, b"one\n"))
        end(cell, uid)
    cell.shipper.close()
    assert not list(tmp_path.glob(f"*/{SHIPPED}"))


def test_end_waits_for_its_output_once_the_control_plane_is_back(
    cell: Cell, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.output.pieces.MAX_PIECES", 2)  # of one attempt
    cell.begin(round_seconds=LONG)
    for uid in ("a", "b"):
        cell.shipper.watch(uid, cell.write(uid, b"one\n"))
    store.is_dead = True
    with pytest.raises(NoResponse):
        cell.shipper.send_round()
    store.is_dead = False
    cell.shipper.send_round()
    cell.shipper.start()
    for uid in ("a", "b"):
        cell.write(uid, b"two\n")
        end(cell, uid)
        assert store.logs[f"{uid}/stdout"] == b"one\ntwo\n"


def test_refused_output_delays_neither_its_end_nor_that_of_others(cell: Cell, store: Store) -> None:
    """Whether they end together, or one after the other: only rounds make a pause."""
    store.statuses["a"] = 507
    cell.begin(round_seconds=LONG).start()
    for uid in ("a", "b", "c"):
        cell.shipper.watch(uid, cell.write(uid, uid.encode()))
    end(cell, "a", "b")
    end(cell, "c")
    assert store.logs == {"b/stdout": b"b", "c/stdout": b"c"}


def test_file_that_cannot_be_read_delays_no_other(cell: Cell, store: Store) -> None:
    (cell.folder / "a" / "stdout").mkdir(parents=True)
    cell.begin(round_seconds=LONG).start()
    cell.shipper.watch("a", cell.folder / "a")
    cell.shipper.watch("b", cell.write("b", b"two\n"))
    end(cell, "a", "b")
    assert store.logs == {"b/stdout": b"two\n"}
    with pytest.raises(UploadDeferred):
        cell.shipper.send_round()


def test_refusal_of_a_batch_holds_for_that_batch(cell: Cell, store: Store, web: Web) -> None:
    store.takes_batches = False
    cell.shipper.watch("a", cell.write("a", b"one\n"))
    cell.shipper.send_round()
    store.takes_batches = True
    cell.write("a", b"two\n")
    cell.shipper.send_round()
    assert store.logs == {"a/stdout": b"one\ntwo\n"}
    assert [request.method for request in web.requests] == ["POST", "PUT", "POST"]


def test_output_written_after_its_round_is_not_taken_for_complete(cell: Cell, store: Store) -> None:
    cell.shipper.watch("a", cell.write("a", b"one\n"))
    cell.shipper.send_round()
    assert not (cell.folder / "a" / SHIPPED).exists()
    cell.write("a", b"two\n")
    cell.shipper.start()
    cell.shipper.finish("a", 30)
    assert store.logs == {"a/stdout": b"one\ntwo\n"}


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
