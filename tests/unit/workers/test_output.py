"""Output arrives whole at a server that counts bytes, whatever it answers in between."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import astuple
from functools import partial
from pathlib import Path
from threading import Event, Thread
from urllib.parse import parse_qs, urlsplit

import pytest

from controlplane.contract.output_batch import OutputPiece, unpack_pieces
from controlplane.contract.wire import keys
from tests.conformance.kit import until
from tests.harness.web import Answer, Request, Web
from workers.output.client import NoResponse, UploadDeferred
from workers.output.pieces import Upload
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
        self.pieces_each = 1000
        self.free = Event()  # requests wait until it is set, except those of `free_methods`
        self.free.set()
        self.free_methods: set[str] = set()
        self.waiting = 0
        self.takes_batches = True
        self.pieces: list[str] = []
        self.statuses: dict[str, int] = {}
        web.route = self.answer

    def answer(self, request: Request) -> Answer:
        if self.is_dead:
            raise ConnectionAbortedError
        if request.method not in self.free_methods:
            self.waiting += 1
            self.free.wait(30)
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
            results, has_time = [], True
            for number, piece in enumerate(unpack_pieces(request.body)):
                has_time &= number < self.pieces_each
                results.append(self.append(*astuple(piece)) if has_time else (429, None))
                has_time &= results[-1][0] != 503
            document = [{"status": status, "size": size} for status, size in results]
            return Answer(200, json.dumps({"results": document}).encode())
        *_, uid, _, stream = parts.path.split("/")
        offset = int(parse_qs(parts.query)["offset"][0])
        status, size = self.append(uid, stream, offset, request.body)
        return Answer(status, json.dumps({"size": size}).encode())

    def has(self, name: str, size: int) -> bool:
        return len(self.logs.get(name, b"")) == size

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
    cell.shipper.send_round()
    assert store.logs == {"b/stdout": b"two\n"}
    del store.statuses["a"]
    cell.shipper.start()
    until(lambda: store.logs == {"a/stdout": b"one\n", "b/stdout": b"two\n"})


def test_refused_output_makes_no_pause_for_others(cell: Cell, store: Store) -> None:
    store.statuses["a"] = 507
    cell.shipper.watch("a", cell.write("a", b"one\n"))
    cell.shipper.watch("b", cell.write("b", b""))
    cell.shipper.start()
    until(lambda: store.pieces.count("a/stdout") == 4)
    rounds = 0
    while store.pieces.count("a/stdout") == 4:
        rounds += 1
        size = len(cell.write("b", b"x").joinpath("stdout").read_bytes())
        until(partial(store.has, "b/stdout", size))
    assert rounds > 3, "a pause of one output is a pause of all"


def test_each_output_has_its_turn_if_the_time_of_requests_is_short(
    cell: Cell, store: Store
) -> None:
    store.pieces_each = 2
    uids = ["a", "b", "c", "d", "e"]
    for _ in range(2):
        for uid in uids:
            cell.shipper.watch(uid, cell.write(uid, b"x"))
        cell.shipper.send_round()
        assert sorted(store.logs) == [f"{uid}/stdout" for uid in uids]


def test_output_that_the_store_does_not_take_delays_no_other(cell: Cell, store: Store) -> None:
    """503 ends a request: the pieces after it are not tried."""
    store.statuses["a"] = 503
    for uid in ("a", "b", "c"):
        cell.shipper.watch(uid, cell.write(uid, b"x"))
    with suppress(UploadDeferred):
        cell.shipper.send_round()
    until(lambda: cell.shipper._uploads["a"].is_due)
    cell.shipper.send_round()
    assert sorted(store.logs) == ["b/stdout", "c/stdout"]


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


@pytest.mark.parametrize("store", ["batches"], indirect=True)
def test_end_of_an_attempt_whose_output_is_being_read_is_not_forgotten(
    cell: Cell, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread reads it, as one of a round, when the attempt ends."""
    read, ends = Upload.read, list[Thread]()

    def end_while(upload: Upload, stream: str, limit: int) -> OutputPiece | None:
        if upload.uid == "b" and not ends:
            ends.append(Thread(target=cell.shipper.finish, args=("a", LONG), daemon=True))
            cell.write("a", b"two\n")
            ends[0].start()
            until(lambda: "a" in cell.shipper._queued)
        return read(upload, stream, limit)

    monkeypatch.setattr(Upload, "read", end_while)
    cell.begin(round_seconds=0.5)
    for uid in ("a", "b"):
        cell.shipper.watch(uid, cell.write(uid, b"one\n"))
    cell.shipper.start()
    until(lambda: bool(ends))
    ends[0].join(30)
    assert not ends[0].is_alive()
    assert store.logs["a/stdout"] == b"one\ntwo\n"


def test_end_without_output_waits_for_no_request(cell: Cell, store: Store) -> None:
    store.free.clear()
    cell.begin(round_seconds=0.02).start()
    cell.shipper.watch("a", cell.write("a", b"one\n"))
    cell.shipper.watch("b", cell.write("b", b""))
    until(lambda: store.waiting > 0)
    end(cell, "b")
    assert store.logs == {}
    store.free.set()


def test_large_output_in_a_thread_of_its_own_delays_no_other(cell: Cell, store: Store) -> None:
    cell.begin(round_seconds=0.02)
    cell.shipper.watch("a", cell.write("a", b"x" * 200_000))
    cell.shipper.watch("b", cell.write("b", b""))
    store.free.clear()
    store.free_methods = {"POST"}
    large = Thread(target=cell.shipper.finish, args=("a", LONG), daemon=True)
    large.start()
    until(lambda: store.waiting > 0)
    if not store.takes_batches:
        store.free.set()
    cell.shipper.start()
    cell.write("b", b"two\n")
    end(cell, "b")
    assert store.logs["b/stdout"] == b"two\n"
    store.free.set()
    large.join(30)
    assert len(store.logs["a/stdout"]) == 200_000


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
