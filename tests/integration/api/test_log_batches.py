"""A cell uploads output of several attempts in one request, with a result for each piece."""

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection
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


def results(answer: Answer) -> list[tuple[int, int | None]]:
    assert answer.status == 200
    check_described("UploadResults", answer.json)
    return [(item["status"], item["size"]) for item in answer.json["results"]]


def test_pieces_of_several_attempts_and_streams_are_appended(
    submitter: Caller, cell: Cell, attempts: list[Attempt]
) -> None:
    one, two, three = attempts
    answer = upload(
        cell,
        piece(one, b"one\n"),
        piece(one, b"oh\n", stream="stderr"),
        piece(two, b"\x00\xff\n"),
        piece(one, b"more\n", offset=4),
    )
    assert results(answer) == [(200, 4), (200, 3), (200, 3), (200, 9)]
    assert read(submitter, one) == (b"one\nmore\n", "9")
    assert read(submitter, one, "?stream=stderr") == (b"oh\n", "3")
    assert read(submitter, two) == (b"\x00\xff\n", "3")
    assert read(submitter, three) == (b"", "0")
    assert stored(submitter) == 9 + 3 + 3


def test_each_piece_has_the_result_that_it_would_have_alone(
    submitter: Caller, cell: Cell, attempts: list[Attempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "MAX_STREAM_BYTES", 6)
    one, two, three = attempts
    upload(cell, piece(one, b"one\n"))
    answer = upload(
        cell,
        piece(one, b"again"),
        piece(one, b"later", offset=5),
        piece(two, b"12345678"),
        piece(three, b"x", stream="log"),
        OutputPiece(str(uuid4()), "stdout", 0, b"x"),
        OutputPiece("../../etc", "stdout", 0, b"x"),
        piece(three, b"kept"),
    )
    unknown = [(404, None)] * 3
    assert results(answer) == [(409, 4), (409, 4), (410, 6), *unknown, (200, 4)]
    assert read(submitter, three) == (b"kept", "4")
    assert stored(submitter) == 4 + 6 + 4


def test_piece_of_an_attempt_of_another_cell_is_not_stored(
    submitter: Caller, make_cell: Callable[..., Cell], cell: Cell, attempts: list[Attempt]
) -> None:
    other = place(Task.objects.get(job_id=submit(submitter)), make_cell("cell-2"))
    assert results(upload(cell, piece(other, b"x"), piece(attempts[0], b"y"))) == [
        (404, None),
        (200, 1),
    ]
    assert read(submitter, other) == (b"", "0")


def test_output_over_the_limit_of_the_project_ends_with_a_line(
    operator: Caller, submitter: Caller, cell: Cell, attempts: list[Attempt]
) -> None:
    limit(operator, 10)
    assert results(upload(cell, piece(attempts[0], b"0123456789"))) == [(200, 10)]
    one, two = results(
        upload(cell, piece(attempts[1], b"a"), piece(attempts[2], b"b", stream="stderr"))
    )
    for (status, size), attempt, query in (
        (one, attempts[1], ""),
        (two, attempts[2], "?stream=stderr"),
    ):
        content, cursor = read(submitter, attempt, query)
        assert (status, str(size)) == (410, cursor)
        assert b"stored_bytes" in content or b"storage" in content
    assert stored(submitter) == 10 + (one[1] or 0) + (two[1] or 0)


def test_full_store_refuses_pieces_for_now(
    cell: Cell, attempts: list[Attempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StoreFull("full")

    monkeypatch.setattr(contents, "check_space", refuse)
    assert results(upload(cell, piece(attempts[0], b"a"))) == [(507, None)]


def refuse_appends(monkeypatch: pytest.MonkeyPatch, of: Attempt, error: Exception) -> list[UUID]:
    """Let the store fail for the output of one attempt; return the attempts of its calls."""
    calls, append = list[UUID](), current_store().append_log

    def fail(uid: UUID, *args: Any, **options: Any) -> int:
        calls.append(uid)
        if uid == of.uid:
            raise error
        return append(uid, *args, **options)

    monkeypatch.setattr(current_store(), "append_log", fail)
    return calls


def test_pieces_after_one_without_an_answer_of_the_store_are_not_tried(
    submitter: Caller, cell: Cell, attempts: list[Attempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = refuse_appends(monkeypatch, attempts[1], StoreUnavailable("no answer"))
    answer = upload(cell, *(piece(it, b"x") for it in attempts))
    assert results(answer) == [(200, 1), (503, None), (429, None)]
    assert calls == [attempts[0].uid, attempts[1].uid]
    assert stored(submitter) == 1


def test_stream_that_cannot_be_written_fails_alone(
    submitter: Caller, cell: Cell, attempts: list[Attempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_appends(monkeypatch, attempts[1], OSError("input/output error"))
    answer = upload(cell, *(piece(it, b"x") for it in attempts))
    assert results(answer) == [(200, 1), (500, None), (200, 1)]
    assert stored(submitter) == 2


def test_pieces_that_are_left_when_the_time_is_over_are_not_tried(
    submitter: Caller, cell: Cell, attempts: list[Attempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "BATCH_SECONDS", 0.0)
    answer = upload(cell, *(piece(it, b"x") for it in attempts))
    assert results(answer) == [(200, 1), (429, None), (429, None)]
    assert results(upload(cell, *(piece(it, b"x") for it in attempts[1:]))) == [
        (200, 1),
        (429, None),
    ]
    assert stored(submitter) == 2


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
    assert results(answer) == [(404, None), (200, 4)]
    assert stored(submitter) == 4


def test_first_pieces_take_as_many_statements_for_many_attempts_as_for_one(
    cell: Cell, attempts: list[Attempt]
) -> None:
    counts = []
    for part in ([piece(attempts[0], b"x")], [piece(it, b"y") for it in attempts[1:]]):
        with CaptureQueriesContext(
            connection,
        ) as found:
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
    assert results(upload(cell, piece(attempts[0], b"x"), key=following)) == [(200, 1)]
    assert results(upload(cell, piece(attempts[1], b"x"), key=former)) == [(200, 1)]
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
        json.dumps([["a", "stdout", 0, 1]] * (MAX_PIECES + 1)).encode() + b"\n" + b"x" * 501,
    ],
)
def test_body_that_cannot_be_read_is_refused_as_a_whole(cell: Cell, body: bytes) -> None:
    answer = send(key_of(cell), "POST", "/logs:batch", body)
    assert answer.status == 400
    check_described("Problem", answer.json)


@pytest.mark.parametrize("text", ["\x00", "\ud800", "é" * 5000, ""])
def test_odd_names_are_no_server_error(cell: Cell, attempts: list[Attempt], text: str) -> None:
    head = json.dumps([[text, "stdout", 0, 1], [str(attempts[0].uid), text, 0, 1]])
    answer = send(key_of(cell), "POST", "/logs:batch", head.encode() + b"\nxy")
    assert results(answer) == [(404, None), (404, None)]
