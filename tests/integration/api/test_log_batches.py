"""A cell uploads the last output of several attempts in one request."""

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from controlplane import clock
from controlplane.commands.attempts import logs
from controlplane.commands.cells.operate import enroll_cell, revoke_cell
from controlplane.contract.output_batch import MAX_PIECES, OutputPiece, pack_pieces
from controlplane.contract.wire import keys
from controlplane.models import Attempt, Cell, Task
from controlplane.queries.cells.keys import key_of
from controlplane.storage.current import current_store
from controlplane.storage.folder import contents
from controlplane.storage.interface import StoreFull, StoreUnavailable
from tests.integration.api.conftest import Answer, Caller, check_described
from tests.integration.api.test_keys_of_cells import next_key_of, send
from tests.integration.api.test_logs import read
from tests.integration.api.test_logs import upload as put
from tests.integration.api.test_reading import place, submit
from tests.integration.api.test_stored_bytes import delete, limit, stored


@pytest.fixture
def cell(make_cell: Callable[..., Cell]) -> Cell:
    return make_cell()


@pytest.fixture
def attempts(submitter: Caller, cell: Cell) -> list[Attempt]:
    return [place(Task.objects.get(job_id=submit(submitter)), cell) for _ in range(3)]


def piece(attempt: Attempt, content: bytes, offset: int = 0, stream: str = "stdout") -> OutputPiece:
    return OutputPiece(str(attempt.uid), stream, offset, content)


def upload(cell: Cell, *pieces: OutputPiece, key: bytes | None = None) -> Answer:
    return send(key or key_of(cell), "POST", "/logs:batch", pack_pieces(pieces))


def append(cell: Cell, attempt: Attempt, content: bytes, offset: int = 0) -> Answer:
    return put(cell, attempt.uid, content, offset=offset)


def stored_of(answer: Answer) -> set[str]:
    assert answer.status == 200
    check_described("StoredOutputs", answer.json)
    return set(answer.json["stored"])


def test_pieces_of_several_attempts_and_streams_are_appended(
    submitter: Caller, cell: Cell, attempts: list[Attempt]
) -> None:
    one, two, three = attempts
    append(cell, one, b"be\n")
    answer = upload(
        cell,
        piece(one, b"one\n", offset=3),
        piece(one, b"oh\n", stream="stderr"),
        piece(two, b"\x00\xff\n"),
        piece(one, b"more\n", offset=7),
    )
    assert stored_of(answer) == {str(one.uid), str(two.uid)}
    assert read(submitter, one) == (b"be\none\nmore\n", "12")
    assert read(submitter, one, "?stream=stderr") == (b"oh\n", "3")
    assert read(submitter, two) == (b"\x00\xff\n", "3")
    assert read(submitter, three) == (b"", "0")
    assert stored(submitter) == 12 + 3 + 3


def test_output_that_cannot_be_stored_as_a_whole_is_not_named(
    submitter: Caller, cell: Cell, attempts: list[Attempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "MAX_STREAM_BYTES", 6)
    one, two, three = attempts
    append(cell, one, b"one\n")
    answer = upload(
        cell,
        piece(one, b"again"),
        piece(two, b"12345678"),
        piece(two, b"err", stream="stderr"),
        piece(three, b"x", stream="log"),
        OutputPiece(str(uuid4()), "stdout", 0, b"x"),
        OutputPiece("../../etc", "stdout", 0, b"x"),
        piece(three, b"not known"),
    )
    assert stored_of(answer) == set()
    assert read(submitter, one) == (b"one\n", "4")
    # The response to the upload of its own has the reason: the stream is full.
    assert append(cell, two, b"12345678").status == 409
    assert append(cell, two, b"78", 6).status == 410


def test_doubled_request_appends_once(
    submitter: Caller, cell: Cell, attempts: list[Attempt]
) -> None:
    pieces = [piece(it, b"once\n") for it in attempts]
    assert len(stored_of(upload(cell, *pieces))) == 3
    assert stored_of(upload(cell, *pieces)) == set()
    answer = append(cell, attempts[0], b"once\n")
    assert (answer.status, answer.json["size"]) == (409, 5)
    assert read(submitter, attempts[0]) == (b"once\n", "5")
    assert stored(submitter) == 15


def test_piece_of_an_attempt_of_another_cell_is_not_stored(
    submitter: Caller, make_cell: Callable[..., Cell], cell: Cell, attempts: list[Attempt]
) -> None:
    other = place(Task.objects.get(job_id=submit(submitter)), make_cell("cell-2"))
    answer = upload(cell, piece(other, b"x"), piece(attempts[0], b"y"))
    assert stored_of(answer) == {str(attempts[0].uid)}
    assert read(submitter, other) == (b"", "0")


def test_used_up_storage_of_a_project_ends_its_output_with_a_line(
    operator: Caller, submitter: Caller, cell: Cell, attempts: list[Attempt]
) -> None:
    limit(operator, 10)
    assert stored_of(upload(cell, piece(attempts[0], b"0123456789"))) == {str(attempts[0].uid)}
    assert stored_of(upload(cell, piece(attempts[1], b"a"))) == set()
    assert read(submitter, attempts[1]) == (b"", "0")
    assert append(cell, attempts[1], b"a").status == 410
    content, _ = read(submitter, attempts[1])
    assert content.startswith(b"a")
    assert b"stored_bytes" in content


@pytest.mark.parametrize("error", [StoreUnavailable("no answer"), StoreFull("full")])
def test_no_output_is_begun_after_the_store_has_failed(
    submitter: Caller,
    cell: Cell,
    attempts: list[Attempt],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    first, second, _ = attempts
    calls = refuse_appends(monkeypatch, second, error)
    answer = upload(cell, *(piece(it, b"x") for it in attempts))
    assert stored_of(answer) == {str(first.uid)}
    assert answer.json["untried"] == []
    assert calls == [first.uid, second.uid]
    assert stored(submitter) == 1


def refuse_appends(monkeypatch: pytest.MonkeyPatch, of: Attempt, error: Exception) -> list[UUID]:
    """Let the store fail for the output of one attempt; return the attempts of its calls."""
    calls, append_log = list[UUID](), current_store().append_log

    def fail(uid: UUID, *args: Any, **options: Any) -> int:
        calls.append(uid)
        if uid == of.uid:
            raise error
        return append_log(uid, *args, **options)

    monkeypatch.setattr(current_store(), "append_log", fail)
    return calls


def test_stream_that_cannot_be_written_fails_alone(
    submitter: Caller, cell: Cell, attempts: list[Attempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_appends(monkeypatch, attempts[1], OSError("input/output error"))
    answer = upload(cell, *(piece(it, b"x") for it in attempts))
    assert stored_of(answer) == {str(attempts[0].uid), str(attempts[2].uid)}
    assert stored(submitter) == 2


def test_no_output_is_begun_when_the_time_is_over(
    submitter: Caller, cell: Cell, attempts: list[Attempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "STORE_SECONDS", 0.0)
    answer = upload(cell, *(piece(it, b"x") for it in attempts))
    assert stored_of(answer) == set()
    assert set(answer.json["untried"]) == {str(it.uid) for it in attempts}
    assert stored(submitter) == 0


@pytest.mark.parametrize("step", [1, -1])
def test_outputs_are_begun_in_the_order_of_the_request_while_there_is_time(
    submitter: Caller,
    cell: Cell,
    attempts: list[Attempt],
    monkeypatch: pytest.MonkeyPatch,
    step: int,
) -> None:
    first, *others = sorted(attempts, key=lambda it: it.uid)[::step]
    append_log = current_store().append_log

    def append_slowly(*args: Any, **options: Any) -> int:
        size = append_log(*args, **options)
        monkeypatch.setattr(clock, "monotonic", lambda: float("inf"))
        return size

    monkeypatch.setattr(current_store(), "append_log", append_slowly)
    streams = [piece(first, b"out"), piece(first, b"err", stream="stderr")]
    answer = upload(cell, *streams, *(piece(it, b"x") for it in others))
    assert stored_of(answer) == {str(first.uid)}
    assert set(answer.json["untried"]) == {str(it.uid) for it in others}
    assert stored(submitter) == 6


@pytest.mark.parametrize("batch", [True, False])
def test_size_of_a_piece_is_recorded_after_its_record_has_failed(
    submitter: Caller,
    cell: Cell,
    attempts: list[Attempt],
    monkeypatch: pytest.MonkeyPatch,
    batch: bool,
) -> None:
    def fail(*_: object) -> None:
        raise OperationalError("the connection is closed")

    one = attempts[0]
    with monkeypatch.context() as patch:
        patch.setattr(logs, "record_outputs" if batch else "record_output", fail)
        answer = upload(cell, piece(one, b"abc")) if batch else append(cell, one, b"abc")
    assert answer.status == 503
    assert append(cell, one, b"abc").status == 409
    assert read(submitter, one) == (b"abc", "3")
    assert stored(submitter) == 3


def test_upload_during_the_deletion_of_a_job_leaves_nothing(
    submitter: Caller, cell: Cell, attempts: list[Attempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = logs.record_outputs

    def deleted_before(sizes: Any) -> Any:
        found = record(sizes)
        delete(attempts[0])
        return found

    monkeypatch.setattr(logs, "record_outputs", deleted_before)
    answer = upload(cell, piece(attempts[0], b"lost"), piece(attempts[1], b"kept"))
    assert stored_of(answer) == {str(attempts[1].uid)}
    assert stored(submitter) == 4
    found = current_store().read_log(attempts[0].uid, "stdout", offset=0, limit=9)
    assert found.content == b""


def test_purged_output_is_removed_if_the_record_or_another_removal_fails(
    submitter: Caller, cell: Cell, attempts: list[Attempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    remove_logs = current_store().remove_logs
    first, *others = sorted(it.uid for it in attempts)

    def deleted_before(_: object) -> None:
        for attempt in attempts:
            delete(attempt)
        raise OperationalError("the connection is closed")

    def fail_once(uid: UUID) -> None:
        if uid == first:
            raise OSError("input/output error")
        remove_logs(uid)

    with monkeypatch.context() as patch:
        patch.setattr(logs, "record_outputs", deleted_before)
        patch.setattr(current_store(), "remove_logs", fail_once)
        assert upload(cell, *(piece(it, b"lost") for it in attempts)).status == 503
    for uid in others:
        assert current_store().read_log(uid, "stdout", offset=0, limit=9).content == b""


def test_pieces_of_many_attempts_take_as_many_statements_as_one(
    cell: Cell, attempts: list[Attempt]
) -> None:
    counts = []
    for part in ([piece(attempts[0], b"x")], [piece(it, b"y") for it in attempts[1:]]):
        with CaptureQueriesContext(connection) as found:
            upload(cell, *part)
        counts.append(len(found))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("invalid", ["revoked", "renewed"])
def test_request_with_an_invalid_key_is_refused(
    submitter: Caller, cell: Cell, attempts: list[Attempt], invalid: str
) -> None:
    key = key_of(cell)
    if invalid == "revoked":
        revoke_cell(name="cell-1", actor="op", now=clock.now())
    else:
        enroll_cell(name="cell-1", renew=True, actor="op", now=clock.now())
    assert upload(cell, piece(attempts[0], b"x"), key=key).status == 401
    assert read(submitter, attempts[0]) == (b"", "0")


def test_either_key_of_a_rotation_is_accepted(cell: Cell, attempts: list[Attempt]) -> None:
    former = key_of(cell)
    following = next_key_of(cell)
    assert stored_of(upload(cell, piece(attempts[0], b"x"), key=following)) == {
        str(attempts[0].uid)
    }
    assert stored_of(upload(cell, piece(attempts[1], b"x"), key=former)) == {str(attempts[1].uid)}
    assert upload(cell, key=b"o" * keys.KEY_BYTES).status == 401


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[",
        b"[" * 100_000,
        b"[1]\n",
        b'[["a","stdout",0]]\n',
        b'[["a","stdout",-1,1]]\nx',
        b'[["a","stdout",0,0]]\n',
        b'[["a","stdout",0,2]]\nx',
        b'[["a","stdout",0,1]]\nxy',
        b'[["a","stdout",0,1.0]]\nx',
        b'[["a","stdout",1e400,1]]\nx',
        json.dumps([["a", "stdout", 1 << 53, 1]]).encode() + b"\nx",
        json.dumps([["a", "stdout", 0, 1]] * (MAX_PIECES + 1)).encode() + b"\n" + b"x" * 201,
        b" " * 120 * MAX_PIECES + b"[]\n",
    ],
)
def test_body_that_cannot_be_read_is_refused_as_a_whole(cell: Cell, body: bytes) -> None:
    answer = send(key_of(cell), "POST", "/logs:batch", body)
    assert answer.status == 400
    check_described("Problem", answer.json)


@pytest.mark.parametrize("text", ["\x00", "\ud800", "é" * 500, ""])
def test_odd_names_are_no_server_error(cell: Cell, attempts: list[Attempt], text: str) -> None:
    head = json.dumps([[text, "stdout", 0, 1], [str(attempts[0].uid), text, 0, 1]])
    answer = send(key_of(cell), "POST", "/logs:batch", head.encode() + b"\nxy")
    assert stored_of(answer) == set()
