"""Attempts that end at about the same time upload their last output in one request."""

import json
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest

from controlplane.contract.output_batch import MAX_PIECES, OutputPiece
from tests.conformance.kit import until
from tests.harness.web import Answer, Request, Web
from tests.unit.workers.output.upload_kit import Cell, Store
from workers.output import batches as batches_module
from workers.output.batches import MAX_SMALL_BYTES
from workers.output.shipper import CHUNK_BYTES, SHIPPED


@pytest.fixture
def ends() -> Iterator[Callable[..., threading.Thread]]:
    """Run `finish` of attempts in threads of their own."""
    threads = list[threading.Thread]()

    def end(cell: Cell, uid: str, content: bytes = b"x", seconds: float = 30) -> threading.Thread:
        cell.shipper.watch(uid, cell.write(uid, content))
        threads.append(threading.Thread(target=cell.shipper.finish, args=(uid, seconds)))
        threads[-1].start()
        return threads[-1]

    yield end
    for thread in threads:
        thread.join(30)


class FakeResponse:
    """A response to the upload of one byte."""

    status_code = 200

    def json(self) -> dict[str, int]:
        return {"size": 1}


class Gate:
    """Holds the first request for several attempts until it is opened."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open = threading.Event()
        store.answer_batch = self._answer

    def _answer(self, pieces: list[OutputPiece]) -> Answer:
        self._open.wait(30)
        return self._store.append_batch(pieces)

    def open(self) -> None:
        self._open.set()


def is_shipped(cell: Cell, uid: str) -> bool:
    return (cell.folder / uid / SHIPPED).exists()


def test_last_output_of_both_streams_is_one_request(cell: Cell, store: Store, web: Web) -> None:
    cell.shipper.watch("a", cell.write("a", b"one\n"))
    cell.shipper.send_round()
    cell.write("a", b"two\n")
    cell.write("a", b"oh\n", "stderr")
    cell.shipper.finish("a", 30)
    assert store.logs == {"a/stdout": b"one\ntwo\n", "a/stderr": b"oh\n"}
    assert [request.method for request in web.requests] == ["PUT", "POST"]
    assert is_shipped(cell, "a")


def test_outputs_that_end_during_a_request_share_the_next_one(
    cell: Cell, store: Store, web: Web, ends: Callable[..., threading.Thread]
) -> None:
    gate = Gate(store)
    names = {f"a{number}" for number in range(20)}
    threads = [ends(cell, "first")]
    until(lambda: len(web.requests) == 1)
    threads += [ends(cell, name) for name in names]
    queued = cell.shipper._batches._queue
    until(lambda: queued.qsize() == 20)
    gate.open()
    for thread in threads:
        thread.join(30)
    assert store.batches == [{"first/stdout"}, {f"{name}/stdout" for name in names}]
    assert len(web.requests) == 2
    assert all(is_shipped(cell, name) for name in names)


def test_request_has_a_limited_number_of_pieces_and_bytes(
    cell: Cell, store: Store, web: Web, ends: Callable[..., threading.Thread]
) -> None:
    gate = Gate(store)
    threads = [ends(cell, "first")]
    until(lambda: len(web.requests) == 1)
    large = b"x" * (MAX_SMALL_BYTES - 100)
    threads += [ends(cell, f"large{number}", large) for number in range(12)]
    threads += [ends(cell, f"small{number}") for number in range(MAX_PIECES + 5)]
    until(lambda: cell.shipper._batches._queue.qsize() == 12 + MAX_PIECES + 5)
    gate.open()
    for thread in threads:
        thread.join(30)
    assert max(map(len, store.batches)) <= MAX_PIECES
    assert max(len(request.body) for request in web.requests) < 600_000
    assert {request.method for request in web.requests} == {"POST"}
    assert len(store.logs) == 1 + 12 + MAX_PIECES + 5


def test_large_last_output_has_requests_of_its_own(cell: Cell, store: Store, web: Web) -> None:
    content = b"0123456789" * (CHUNK_BYTES // 8)
    cell.write("a", b"small", "stderr")
    cell.shipper.watch("a", cell.write("a", content))
    cell.shipper.finish("a", 30)
    assert store.logs == {"a/stdout": content, "a/stderr": b"small"}
    assert store.batches == []


def test_output_that_is_not_stored_with_others_is_uploaded_alone(
    cell: Cell, store: Store, ends: Callable[..., threading.Thread]
) -> None:
    gate = Gate(store)
    store.unknown.add("gone")
    store.full.add("full/stdout")
    store.logs["ahead/stdout"] = b"one\n"
    threads = [ends(cell, "first")]
    until(lambda: len(store.batches) == 1)
    for name, content in {
        "gone": b"x",
        "full": b"one\n",
        "ahead": b"one\ntwo\n",
        "good": b"y",
    }.items():
        threads.append(ends(cell, name, content))
    gate.open()
    for thread in threads:
        thread.join(30)
    del store.logs["first/stdout"]
    assert store.logs == {
        "full/stdout": b"one\n",
        "ahead/stdout": b"one\ntwo\n",
        "good/stdout": b"y",
    }
    assert all(is_shipped(cell, name) for name in ("gone", "full", "ahead", "good"))


@pytest.mark.parametrize(
    "answer",
    [
        Answer(404),
        Answer(401),
        Answer(413),
        Answer(302, headers={"Location": "http://elsewhere.invalid/"}),
        Answer(200),
        Answer(200, b"[]"),
        Answer(200, b'{"stored": "a", "untried": []}'),
        Answer(200, b'{"stored": [1], "untried": []}'),
        Answer(200, b'{"stored": ["a", "b"]}'),
        Answer(200, json.dumps({"stored": ["another"], "untried": []}).encode()),
    ],
    ids=lambda answer: f"{answer.status} {answer.body.decode()}",
)
def test_every_refusal_of_a_request_leads_to_uploads_of_each_alone(
    cell: Cell, store: Store, web: Web, answer: Answer
) -> None:
    store.answer_batch = lambda _: answer
    cell.shipper.watch("a", cell.write("a", b"one\n"))
    cell.shipper.finish("a", 30)
    assert store.logs == {"a/stdout": b"one\n"}
    assert [request.method for request in web.requests] == ["POST", "PUT"]
    assert is_shipped(cell, "a")


def abort(_: object) -> Answer:
    raise ConnectionAbortedError


def test_control_plane_that_is_away_ends_no_attempt_late(
    cell: Cell, store: Store, web: Web
) -> None:
    web.route = abort
    cell.shipper.watch("a", cell.write("a", b"one\n"))
    cell.shipper.finish("a", 30)
    assert [request.method for request in web.requests] == ["POST"]
    web.route = store.answer
    cell.shipper.send_round()
    assert store.logs == {"a/stdout": b"one\n"}
    assert is_shipped(cell, "a")


@pytest.mark.parametrize("status", [429, 500, 503])
def test_overloaded_control_plane_gets_no_request_of_each_end(
    cell: Cell, store: Store, web: Web, status: int
) -> None:
    store.answer_batch = lambda _: Answer(status)
    cell.shipper.watch("a", cell.write("a", b"one\n"))
    cell.shipper.finish("a", 30)
    assert [request.method for request in web.requests] == ["POST"]
    cell.shipper.send_round()
    assert store.logs == {"a/stdout": b"one\n"}


def test_lost_response_stores_nothing_twice(cell: Cell, store: Store) -> None:
    def lose(pieces: list[OutputPiece]) -> Answer:
        store.append_batch(pieces)
        raise ConnectionAbortedError

    store.answer_batch = lose
    cell.shipper.watch("a", cell.write("a", b"one\n"))
    cell.shipper.finish("a", 30)
    cell.shipper.send_round()
    assert store.logs == {"a/stdout": b"one\n"}
    assert is_shipped(cell, "a")


def test_late_response_to_a_batch_is_not_ignored(
    cell: Cell, store: Store, web: Web, ends: Callable[..., threading.Thread]
) -> None:
    gate = Gate(store)
    ends(cell, "a", seconds=0.1).join(30)
    assert not is_shipped(cell, "a")
    gate.open()
    until(lambda: is_shipped(cell, "a"))
    cell.shipper.send_round()
    assert [request.method for request in web.requests] == ["POST"]


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_outputs_that_never_get_a_response_stop_no_other(
    cell: Cell,
    store: Store,
    web: Web,
    ends: Callable[..., threading.Thread],
    is_first: bool,
    count: int,
) -> None:
    def answer(request: Request) -> Answer:
        return abort(request) if b"poison" in request.body else store.answer(request)

    web.route = answer
    good, bad = ["a", "b", "c"], [f"bad{number}" for number in range(count)]
    names = [*bad, *good] if is_first else [*good, *bad]
    for name in names:
        cell.shipper.watch(name, cell.write(name, b"poison" if name in bad else b"good"))
    gate = Gate(store)
    threads = [ends(cell, "first")]
    until(lambda: len(store.batches) == 1)
    for name in names:
        threads.append(threading.Thread(target=cell.shipper.finish, args=(name, 30)))
        threads[-1].start()
    until(lambda: cell.shipper._batches._queue.qsize() == len(names))
    gate.open()
    for thread in threads:
        thread.join(30)
    for number in range(3):
        cell.shipper.watch(f"e{number}", cell.write(f"e{number}", b"good"))
        cell.shipper.send_round()
        assert store.logs[f"e{number}/stdout"] == b"good"
    assert all(is_shipped(cell, name) for name in good)
    assert not [name for name in bad if f"{name}/stdout" in store.logs]
    web.route = store.answer
    for name in bad:
        cell.shipper._uploads[name].try_at = 0.0
    cell.shipper.send_round()
    assert all(store.logs[f"{name}/stdout"] == b"poison" for name in bad)


def test_output_that_cannot_be_read_stops_no_other(cell: Cell, store: Store) -> None:
    (cell.folder / "bad" / "stdout").mkdir(parents=True)
    cell.shipper.watch("bad", cell.folder / "bad")
    cell.shipper.watch("good", cell.write("good", b"x"))
    cell.shipper.finish("bad", 30)
    cell.shipper.send_round()
    assert store.logs == {"good/stdout": b"x"}


def test_refused_output_has_a_pause_of_its_own(cell: Cell, store: Store) -> None:
    now = 1000.0
    cell.begin(round_seconds=0.5, timer=lambda: now)
    store.refused = {"bad"}
    for name in ("bad", "good"):
        cell.shipper.watch(name, cell.write(name, b"x"))
    tries = []
    for _ in range(240):
        before = store.tries
        cell.write("good", b"y")
        cell.shipper.send_round()
        tries += [now] * (store.tries - before)
        now += 0.5
    assert len(store.logs["good/stdout"]) == 241
    pauses = [after - before for before, after in pairwise(tries)]
    assert pauses == [0, 0.5, 1, 2, 4, 8, 16, 30, 30]  # first with the other output, then alone
    store.refused = set()
    now += 30
    cell.shipper.send_round()
    assert store.logs["bad/stdout"] == b"x"


def test_output_without_a_response_delays_others_by_one_request(
    cell: Cell, store: Store, ends: Callable[..., threading.Thread]
) -> None:
    gate = Gate(store)
    ends(cell, "slow", seconds=0.2).join(30)
    ends(cell, "late", seconds=0.2).join(30)
    # The thread uploads them alone, without waiting for the request on its way.
    cell.shipper.send_round()
    assert store.logs == {"late/stdout": b"x", "slow/stdout": b"x"}
    gate.open()
    cell.shipper.watch("next", cell.write("next", b"y"))
    cell.shipper.finish("next", 30)
    assert store.logs == {"late/stdout": b"x", "slow/stdout": b"x", "next/stdout": b"y"}
    # An output whose end no longer waits is in no later request.
    assert store.batches == [{"slow/stdout"}, {"next/stdout"}]


def test_no_output_waits_for_a_request_that_does_not_end(
    cell: Cell, store: Store, ends: Callable[..., threading.Thread]
) -> None:
    gate = Gate(store)
    ends(cell, "slow", seconds=0.1).join(30)
    cell.shipper._batches._sending_since -= 1000
    ends(cell, "next", seconds=30).join(30)
    assert store.logs == {"next/stdout": b"x"}
    gate.open()


def test_machine_without_threads_uploads_each_output_alone(
    cell: Cell, store: Store, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("can't start new thread")

    for name in ("a", "b"):
        cell.shipper.watch(name, cell.write(name, b"x"))
    with monkeypatch.context() as patch:
        patch.setattr(batches_module.threading.Thread, "start", fail)
        # The server of this test needs threads as well.
        patch.setattr(cell.shipper, "_request", lambda *_: FakeResponse())
        cell.shipper.finish("a", 30)
    assert is_shipped(cell, "a")
    cell.shipper.finish("b", 30)
    assert store.batches == [{"b/stdout"}]


def test_round_skips_what_was_sent_since_its_beginning(
    cell: Cell, store: Store, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(request: Request) -> Answer:
        if request.method == "PUT":
            cell.shipper.finish("b", 30)
        return store.answer(request)

    large = b"x" * (MAX_SMALL_BYTES + 1)
    cell.shipper.watch("a", cell.write("a", large))
    cell.shipper.watch("b", cell.write("b", b"x"))
    web.route = answer
    cell.shipper.send_round()
    assert [request.method for request in web.requests] == ["PUT", "POST"]
    assert store.logs == {"a/stdout": large, "b/stdout": b"x"}


def test_round_sends_small_outputs_in_requests_of_limited_size(
    cell: Cell, store: Store, web: Web
) -> None:
    names = [f"a{number}" for number in range(MAX_PIECES)]
    large = [f"large{number}" for number in range(12)]
    for name in names:
        cell.write(name, b"oh\n", "stderr")
        cell.shipper.watch(name, cell.write(name, b"one\n"))
    for name in large:
        cell.shipper.watch(name, cell.write(name, b"x" * (MAX_SMALL_BYTES - 100)))
    cell.shipper.send_round()
    assert {request.method for request in web.requests} == {"POST"}
    assert len(web.requests) <= 5
    assert max(map(len, store.batches)) <= MAX_PIECES
    assert max(len(request.body) for request in web.requests) < 600_000
    for name in names:
        cell.write(name, b"two\n")
    cell.shipper.send_round()
    assert {store.logs[f"{name}/stdout"] for name in names} == {b"one\ntwo\n"}
    assert {store.logs[f"{name}/stderr"] for name in names} == {b"oh\n"}
    assert len(store.logs) == 2 * len(names) + len(large)
    assert len(web.requests) <= 7
    for name in names:
        cell.shipper.finish(name, 30)
    assert len(web.requests) <= 7
    assert all(is_shipped(cell, name) for name in names)


def test_round_uploads_alone_what_a_request_did_not_store(
    cell: Cell, store: Store, web: Web
) -> None:
    store.unknown.add("gone")
    store.full.add("full/stdout")
    store.logs["ahead/stdout"] = b"one\n"
    for name in ("gone", "full", "ahead", "good", "better"):
        cell.shipper.watch(name, cell.write(name, b"one\n"))
    cell.shipper.send_round()
    assert [request.method for request in web.requests] == ["POST", "PUT", "PUT", "PUT"]
    cell.write("gone", b"two\n")
    cell.write("ahead", b"two\n")
    cell.shipper.send_round()
    assert store.logs == {
        "full/stdout": b"one\n",
        "ahead/stdout": b"one\ntwo\n",
        "good/stdout": b"one\n",
        "better/stdout": b"one\n",
    }


@pytest.mark.parametrize("status", [429, 503, 0])
def test_outputs_of_a_failed_round_are_uploaded_alone_after_a_pause(
    cell: Cell, store: Store, web: Web, status: int
) -> None:
    def answer(request: Request) -> Answer:
        if request.method == "PUT":
            return store.answer(request)
        return Answer(status, b"{}") if status else abort(request)

    now = 1000.0
    cell.begin(round_seconds=0.5, timer=lambda: now)
    web.route = answer
    for name in ("a", "b", "c"):
        cell.shipper.watch(name, cell.write(name, b"one\n"))
    cell.shipper.send_round()
    assert [request.method for request in web.requests] == ["POST"]
    cell.shipper.send_round()
    assert len(web.requests) == 1
    now += 0.5
    cell.shipper.send_round()
    assert [request.method for request in web.requests] == ["POST", "PUT", "PUT", "PUT"]
    web.route = store.answer
    for name in ("a", "b", "c"):
        cell.write(name, b"two\n")
    cell.shipper.send_round()
    assert store.batches[-1] == {"a/stdout", "b/stdout", "c/stdout"}
    assert set(store.logs.values()) == {b"one\ntwo\n"}


class Busy:
    """Has time for the first attempts of each request only."""

    def __init__(self, store: Store, begun: int = 1) -> None:
        self._store = store
        self._begun = begun
        store.answer_batch = self._answer

    def _answer(self, pieces: list[OutputPiece]) -> Answer:
        uids = list(dict.fromkeys(it.uid for it in pieces))
        begun = [it for it in pieces if it.uid in uids[: self._begun]]
        document = json.loads(self._store.append_batch(begun).body)
        return Answer(200, json.dumps({**document, "untried": uids[self._begun :]}).encode())


def test_outputs_without_time_in_a_request_are_in_the_next_one(
    cell: Cell, store: Store, web: Web, ends: Callable[..., threading.Thread]
) -> None:
    gate = Gate(store)
    threads = [ends(cell, "first")]
    until(lambda: len(store.batches) == 1)
    threads += [ends(cell, name) for name in ("a", "b", "c")]
    until(lambda: cell.shipper._batches._queue.qsize() == 3)
    Busy(store)
    gate.open()
    for thread in threads:
        thread.join(30)
    assert set(store.logs) == {f"{name}/stdout" for name in ("first", "a", "b", "c")}
    assert {request.method for request in web.requests} == {"POST"}
    assert all(is_shipped(cell, name) for name in ("first", "a", "b", "c"))


def test_outputs_without_time_in_a_round_come_first_in_the_next_one(
    cell: Cell, store: Store, web: Web
) -> None:
    Busy(store, begun=2)
    names = ("a", "b", "c", "d", "e")
    for name in names:
        cell.shipper.watch(name, cell.write(name, b"."))
    for _ in range(5):
        cell.shipper.send_round()
        for name in names:
            cell.write(name, b".")
    assert {request.method for request in web.requests} == {"POST"}
    # Two of five attempts in each of five rounds: each had its turn twice.
    assert store.logs.keys() == {f"{name}/stdout" for name in names}
    assert min(map(len, store.logs.values())) >= 3


def test_closed_shipper_sends_no_further_request(cell: Cell, store: Store, web: Web) -> None:
    for number in range(MAX_PIECES):
        cell.shipper.watch(f"a{number}", cell.write(f"a{number}", b"x"))

    def close(pieces: list[OutputPiece]) -> Answer:
        cell.shipper.close()
        return store.append_batch(pieces)

    store.answer_batch = close
    cell.shipper.send_round()
    assert len(web.requests) == 1


def test_end_without_time_for_its_output_leaves_it_to_the_rounds(
    cell: Cell, store: Store, web: Web, ends: Callable[..., threading.Thread]
) -> None:
    gate = Gate(store)
    first = ends(cell, "first")
    until(lambda: len(store.batches) == 1)
    for name in ("a", "b"):
        ends(cell, name, seconds=0.1).join(30)
    assert store.logs == {}
    store.answer_batch = store.append_batch
    cell.shipper.send_round()
    assert store.batches[1:] == [{"a/stdout", "b/stdout"}]
    gate.open()
    first.join(30)
    assert {request.method for request in web.requests} == {"POST"}


def test_end_does_not_wait_for_other_outputs_of_a_round(
    cell: Cell, store: Store, ends: Callable[..., threading.Thread]
) -> None:
    gate = Gate(store)
    for name in ("a", "b"):
        cell.shipper.watch(name, cell.write(name, b"x"))
    threading.Thread(target=cell.shipper.send_round).start()
    until(lambda: len(store.batches) == 1)
    store.answer_batch = store.append_batch
    ends(cell, "ends").join(30)
    assert is_shipped(cell, "ends")
    assert store.batches[1:] == [{"ends/stdout"}]
    gate.open()
    until(lambda: len(store.logs) == 3)


def test_rounds_do_not_wait_for_an_output_that_ends(
    cell: Cell, store: Store, ends: Callable[..., threading.Thread]
) -> None:
    gate = Gate(store)
    ends(cell, "ends")
    until(lambda: len(store.batches) == 1)
    cell.shipper.watch("b", cell.write("b", b"one\n"))
    cell.shipper.send_round()
    assert store.logs == {"b/stdout": b"one\n"}
    gate.open()


def test_short_attempt_uploads_its_output_only_at_its_end(
    cell: Cell, store: Store, web: Web
) -> None:
    shipper = cell.begin(short_seconds=3600)
    shipper.watch("a", cell.write("a", b"one\n"))
    shipper.send_round()
    assert web.requests == []
    shipper.finish("a", 0.0)
    shipper.send_round()
    assert store.logs == {"a/stdout": b"one\n"}


def test_close_ends_what_waits(
    cell: Cell, store: Store, ends: Callable[..., threading.Thread]
) -> None:
    gate = Gate(store)
    threads = [ends(cell, "first")]
    until(lambda: len(store.batches) == 1)
    threads.append(ends(cell, "second"))
    batches: Any = cell.shipper._batches
    until(lambda: batches._queue.qsize() == 1)
    batches.close(0)
    gate.open()
    for thread in threads:
        thread.join(30)
    batches.close(30)
    assert not batches._thread.is_alive()
    assert store.batches == [{"first/stdout"}]
    assert is_shipped(cell, "second")  # alone
    ends(cell, "third").join(30)
    assert store.logs["third/stdout"] == b"x"
