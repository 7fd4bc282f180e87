"""Output comes in from the attempt's cell, in order and bounded, and is read from any cursor."""

import hashlib
import uuid
from collections.abc import Callable

import pytest

from controlplane import clock
from controlplane.contract.wire import keys
from controlplane.models import Attempt, Cell, Task
from controlplane.queries.cells.keys import key_of
from controlplane.storage.folder import contents
from tests.integration.api.conftest import Answer, Caller
from tests.integration.api.test_reading import place, submit


@pytest.fixture
def cell(make_cell: Callable[..., Cell]) -> Cell:
    return make_cell()


@pytest.fixture
def attempt(submitter: Caller, cell: Cell) -> Attempt:
    submit(submitter)
    return place(Task.objects.get(), cell)


def upload(
    cell: Cell,
    uid: object,
    content: bytes,
    *,
    offset: object = 0,
    stream: str = "stdout",
    **changed: str,
) -> Answer:
    """PUT as a cell does; `changed` replaces headers."""
    path = f"/api/v1/attempts/{uid}/logs/{stream}?offset={offset}"
    at = str(int(clock.now().timestamp()) + int(changed.pop("later", "0")))
    key = keys.mac_key(key_of(cell), keys.UPLOAD)
    digest = hashlib.sha256(content).hexdigest()
    headers = {
        "X-Cellrun-Cell": cell.name,
        "X-Cellrun-Time": at,
        "X-Cellrun-Mac": keys.sign(key, f"{cell.name}\n{at}\n{path}\n{digest}"),
    }
    headers |= {name.replace("_", "-"): value for name, value in changed.items()}
    return Caller(None).send("PUT", path.removeprefix("/api/v1"), content, **headers)


def read(caller: Caller, attempt: Attempt, query: str = "") -> tuple[bytes, str]:
    answer = caller.get(f"/attempts/{attempt.uid}/logs{query}")
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    return answer.content, answer.headers["X-Next-Cursor"]


def test_output_is_appended_and_read_from_any_cursor(
    submitter: Caller, attempt: Attempt, cell: Cell
) -> None:
    assert read(submitter, attempt) == (b"", "0")
    assert upload(cell, attempt.uid, b"one\n").json == {"size": 4}
    assert upload(cell, attempt.uid, b"two\n", offset=4).json == {"size": 8}
    assert upload(cell, attempt.uid, b"oh\n", stream="stderr").json == {"size": 3}
    assert read(submitter, attempt) == (b"one\ntwo\n", "8")
    assert read(submitter, attempt, "?after=4") == (b"two\n", "8")
    assert read(submitter, attempt, "?after=8") == (b"", "8")
    assert read(submitter, attempt, "?after=99") == (b"", "99")
    assert read(submitter, attempt, "?stream=stderr") == (b"oh\n", "3")
    assert read(submitter, attempt, "?tail=1") == (b"two\n", "8")
    assert read(submitter, attempt, "?tail=9") == (b"one\ntwo\n", "8")


def test_a_chunk_at_another_offset_is_refused_with_the_size(attempt: Attempt, cell: Cell) -> None:
    upload(cell, attempt.uid, b"one\n")
    for offset in (0, 2, 5):
        answer = upload(cell, attempt.uid, b"x", offset=offset)
        assert (answer.status, answer.json["size"]) == (409, 4)


def test_stream_over_its_size_limit_is_truncated(
    submitter: Caller, attempt: Attempt, cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "MAX_STREAM_BYTES", 6)
    assert upload(cell, attempt.uid, b"1234").status == 200
    answer = upload(cell, attempt.uid, b"5678", offset=4)
    assert (answer.status, answer.json["size"]) == (410, 6)
    assert answer.json["detail"] == "the stream is full: it stores at most 6 bytes"
    assert read(submitter, attempt) == (b"123456", "6")


def test_output_is_binary_safe_and_characters_are_not_split(
    submitter: Caller, attempt: Attempt, cell: Cell
) -> None:
    euro = "€".encode()
    upload(cell, attempt.uid, b"\x00\xff a" + euro[:2])
    content, cursor = read(submitter, attempt)
    assert (content, cursor) == (b"\x00\xff a", "4")
    upload(cell, attempt.uid, euro[2:], offset=6)
    assert read(submitter, attempt, f"?after={cursor}") == (euro, "7")


@pytest.mark.parametrize(
    "changed",
    [
        {"X_Cellrun_Mac": "0" * 64},
        {"X_Cellrun_Mac": ""},
        {"X_Cellrun_Mac": "é"},
        {"X_Cellrun_Cell": "cell-9"},
        {"X_Cellrun_Cell": ""},
        {"X_Cellrun_Time": "1"},
        {"X_Cellrun_Time": "x"},
        {"later": "305"},
        {"later": "-301"},
    ],
)
def test_upload_with_an_invalid_signature_is_refused(
    submitter: Caller, attempt: Attempt, cell: Cell, changed: dict[str, str]
) -> None:
    answer = upload(cell, attempt.uid, b"x", **changed)
    assert (answer.status, answer.faults) == (401, {})
    assert read(submitter, attempt) == (b"", "0")


@pytest.mark.parametrize("later", ["-270", "270"])
def test_signature_of_a_clock_that_differs_by_minutes_is_accepted(
    attempt: Attempt, cell: Cell, later: str
) -> None:
    assert upload(cell, attempt.uid, b"x", later=later).status == 200


def test_output_runs_nothing_in_a_browser(submitter: Caller, attempt: Attempt, cell: Cell) -> None:
    page = b"<!doctype html><script>alert(1)</script>"
    upload(cell, attempt.uid, page)
    answer = submitter.get(f"/attempts/{attempt.uid}/logs")
    assert answer.content == page
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


def test_cell_can_upload_output_of_its_own_attempts_only(
    attempt: Attempt, make_cell: Callable[..., Cell]
) -> None:
    other = make_cell("cell-2")
    assert upload(other, attempt.uid, b"x").status == 404
    assert upload(other, uuid.uuid4(), b"x").status == 404


@pytest.mark.parametrize("offset", ["", "-1", "x"])
def test_upload_without_a_valid_offset_is_refused(
    attempt: Attempt, cell: Cell, offset: str
) -> None:
    assert list(upload(cell, attempt.uid, b"x", offset=offset).faults) == ["offset"]


def test_unknown_stream_is_refused(submitter: Caller, attempt: Attempt, cell: Cell) -> None:
    assert upload(cell, attempt.uid, b"x", stream="other").status == 404
    answer = submitter.get(f"/attempts/{attempt.uid}/logs?stream=other")
    assert (answer.status, list(answer.faults)) == (400, ["stream"])


@pytest.mark.parametrize("query", ["after=-1", "after=x", "tail=0", "tail=x", "follow=maybe"])
def test_a_malformed_query_is_refused(submitter: Caller, attempt: Attempt, query: str) -> None:
    answer = submitter.get(f"/attempts/{attempt.uid}/logs?{query}")
    assert (answer.status, list(answer.faults)) == (400, [query.partition("=")[0]])


def test_reading_output_requires_a_token(anonymous: Caller, attempt: Attempt) -> None:
    assert anonymous.get(f"/attempts/{attempt.uid}/logs").status == 401
