"""The store in an object store: a real S3 server, with the faults of a real one in between."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import pytest
import requests

from controlplane import clock
from controlplane.commands.convergence.orphan_files import StoreWalk, sweep_orphan_files
from controlplane.commands.retention.purge import purge_deleted
from controlplane.contract.artifacts import path_of
from controlplane.contract.output_batch import OutputPiece
from controlplane.models import Attempt, Cell, Task, Walk
from controlplane.queries.attempts.artifacts import find_prefix
from controlplane.queries.attempts.group_specs import links_at
from controlplane.storage import objects
from controlplane.storage.current import current_store
from controlplane.storage.interface import StoreUnavailable, WrongOffset, drafts_of, log_of
from controlplane.storage.objects import bucket as buckets
from controlplane.storage.objects import contents
from tests.harness.object_store import (
    Fault,
    FaultyProxy,
    StoreRequest,
    environment,
    s3_environment,
    s3_server,
)
from tests.integration.api.conftest import Answer, Caller, change_setting
from tests.integration.api.links import use_link
from tests.integration.api.test_artifacts import digest, put, report_outputs, signed
from tests.integration.api.test_deleted_files import end_and_delete
from tests.integration.api.test_log_batches import stored_of
from tests.integration.api.test_log_batches import upload as upload_pieces
from tests.integration.api.test_logs import read, upload
from tests.integration.api.test_reading import place, submit
from tests.integration.api.test_stored_bytes import stored
from tests.integration.loop.test_unreferenced_files import begin_round
from workers.control_api import HTTP_SECONDS

pytestmark = pytest.mark.stack  # a server of 150 MB
LARGE = bytes(range(256)) * 6_000  # more than one piece


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_server(tmp_path_factory.mktemp("s3")) as url:
        yield url


@pytest.fixture
def proxy(server: str, settings: Any) -> Iterator[FaultyProxy]:
    """A proxy to the server, and settings that lead to a prefix of this test's own there."""
    proxy = FaultyProxy(server)
    change_setting(settings, store_url=f"s3://bucket/{uuid4()}")
    with environment(**s3_environment(proxy.url)):
        yield proxy
    proxy.close()


@pytest.fixture(autouse=True)
def store(proxy: FaultyProxy, settings: Any) -> Iterator[None]:
    """The object store is selected, and no process needs a folder."""
    assert current_store() is objects
    yield
    assert not settings.CELLRUN.artifact_root.exists()


@pytest.fixture
def cell(make_cell: Callable[..., Cell]) -> Cell:
    return make_cell()


@pytest.fixture
def attempt(submitter: Caller, cell: Cell) -> Attempt:
    submit(submitter)
    return place(Task.objects.get(), cell)


def test_last_output_of_several_attempts_is_stored_at_once(
    submitter: Caller, cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts = [place(Task.objects.get(job_id=submit(submitter)), cell) for _ in range(3)]
    all_are_there, put_object = threading.Barrier(3), objects.append_log

    def append(*args: Any, **options: Any) -> int:
        all_are_there.wait(30)
        return put_object(*args, **options)

    pieces = [OutputPiece(str(it.uid), "stdout", 0, b"one\n") for it in attempts]
    with monkeypatch.context() as patch:
        patch.setattr(objects, "append_log", append)
        assert len(stored_of(upload_pieces(cell, *pieces))) == 3
    more = [OutputPiece(str(attempts[0].uid), "stdout", 4 * place, b"two\n") for place in (1, 2)]
    assert stored_of(upload_pieces(cell, *more)) == {str(attempts[0].uid)}
    assert read(submitter, attempts[0]) == (b"one\ntwo\ntwo\n", "12")
    assert read(submitter, attempts[2]) == (b"one\n", "4")
    assert stored(submitter) == 12 + 4 + 4


def keys(prefix: str) -> list[str]:
    return [item.key for item in buckets.bucket().walk(prefix)]


def announce(cell: Cell, attempt: Attempt, name: str, content: bytes, size: int = -1) -> Answer:
    """POST the announcement of a file as a cell does."""
    size = len(content) if size < 0 else size
    path = f"{path_of(str(attempt.uid), name)}?size={size}&sha256={digest(content)}"
    headers = signed(cell, path, b"")
    return Caller(None).send("POST", path.removeprefix("/api/v1"), **headers)


def confirm(cell: Cell, attempt: Attempt, name: str, content: bytes) -> Answer:
    return put(cell, attempt.uid, name, b"", whole=content, offset=len(content))


def send(url: str, content: bytes) -> int:
    return requests.put(url, content, timeout=10).status_code


def fetch(answer: Answer) -> bytes:
    assert answer.status == 302, answer.content
    found = requests.get(answer.headers["Location"], timeout=10)
    assert found.status_code == 200
    return found.content


def failing(status: int, times: int = 1_000_000, method: str = "") -> Callable[..., int | None]:
    """Answer the next requests with a status."""
    left = iter(range(times))

    def fault(request: StoreRequest) -> int | None:
        matches = not method or request.method == method
        return status if matches and next(left, None) is not None else None

    return fault


# ----------------------------------------------------------------------------- artifacts


def test_large_artifact_is_sent_to_a_link_and_read_by_redirect(
    submitter: Caller, attempt: Attempt, cell: Cell, proxy: FaultyProxy
) -> None:
    answer = announce(cell, attempt, "model/ü a", LARGE)
    assert answer.json["size"] == 0
    assert urlsplit(answer.json["url"]).netloc == urlsplit(proxy.url).netloc
    report_outputs(attempt, **{"model/ü a": LARGE})
    path = path_of(str(attempt.uid), "model/ü a").removeprefix("/api/v1")
    assert submitter.get(path).status == 404
    assert send(answer.json["url"], LARGE) == 200
    assert confirm(cell, attempt, "model/ü a", LARGE).json == {"size": len(LARGE)}
    assert announce(cell, attempt, "model/ü a", LARGE).json["size"] == len(LARGE)
    found = submitter.get(path)
    assert found.headers["X-Cellrun-Sha256"] == digest(LARGE)
    assert fetch(found) == LARGE
    path = f"/api/v1/store/artifacts/{attempt.uid}/model/%C3%BC%20a"
    assert fetch(use_link(links_at(clock.now())(attempt.group_id, path), cell)) == LARGE
    assert f"artifacts/{find_prefix(attempt.uid)}/model/ü a" in keys("artifacts")


def test_small_artifact_goes_through_web_in_one_piece(
    submitter: Caller, attempt: Attempt, cell: Cell
) -> None:
    report_outputs(attempt, a=b"one", b=b"")
    for _ in range(2):
        assert put(cell, attempt.uid, "a", b"one").json == {"size": 3}
    assert put(cell, attempt.uid, "b", b"").json == {"size": 0}
    assert fetch(submitter.get(f"/attempts/{attempt.uid}/artifacts/a")) == b"one"
    assert fetch(submitter.get(f"/attempts/{attempt.uid}/artifacts/b")) == b""


@pytest.mark.parametrize("name", ["a b/ü.txt", "50%/x+y&z=1;v?#", "a/.hidden", "~'(x)!*@:,$"])
def test_unusual_artifact_names_are_preserved(
    submitter: Caller, attempt: Attempt, cell: Cell, name: str
) -> None:
    report_outputs(attempt, **{name: LARGE})
    assert send(announce(cell, attempt, name, LARGE).json["url"], LARGE) == 200
    assert confirm(cell, attempt, name, LARGE).json == {"size": len(LARGE)}
    path = path_of(str(attempt.uid), name).removeprefix("/api/v1")
    assert fetch(submitter.get(path)) == LARGE


def test_content_that_differs_from_its_announcement_is_refused(
    submitter: Caller, attempt: Attempt, cell: Cell
) -> None:
    assert put(cell, attempt.uid, "a", b"else", whole=b"that").status == 409
    assert put(cell, attempt.uid, "a", b"longer", whole=b"short").status == 409
    link = announce(cell, attempt, "a", LARGE).json["url"]
    assert confirm(cell, attempt, "a", LARGE).json == {"size": 0}, "nothing was sent"
    assert send(link, LARGE[1:]) == 200
    assert confirm(cell, attempt, "a", LARGE).status == 409
    assert keys("artifacts") == []
    assert send(link, LARGE) == 200
    assert confirm(cell, attempt, "a", LARGE).json == {"size": len(LARGE)}


def test_upload_without_an_announcement_is_not_confirmed(attempt: Attempt, cell: Cell) -> None:
    assert confirm(cell, attempt, "a", LARGE).json == {"size": 0}
    assert put(cell, attempt.uid, "a", LARGE[:10], whole=LARGE).status == 409


def test_new_version_replaces_the_old_one(submitter: Caller, attempt: Attempt, cell: Cell) -> None:
    other = LARGE[::-1]
    for content in (LARGE, other, LARGE):
        state = announce(cell, attempt, "a", content).json
        assert state["size"] == 0, "the size of another version proves nothing"
        assert send(state["url"], content) == 200
        assert confirm(cell, attempt, "a", content).json == {"size": len(content)}
    assert len(keys("drafts")) == 1
    report_outputs(attempt, a=LARGE)
    assert fetch(submitter.get(f"/attempts/{attempt.uid}/artifacts/a")) == LARGE


def test_size_and_number_of_artifacts_are_limited(
    settings: Any, monkeypatch: pytest.MonkeyPatch, attempt: Attempt, cell: Cell
) -> None:
    change_setting(settings, max_artifact_mib=2)
    assert announce(cell, attempt, "a", b"", size=1_500_000).status == 200
    answer = announce(cell, attempt, "b", b"", size=1_100_000)
    assert (answer.status, "2097152" in answer.json["detail"]) == (413, True)
    assert put(cell, attempt.uid, "b", b"x" * 700_000).status == 413
    assert put(cell, attempt.uid, "b", b"x" * 500_000).status == 200
    assert announce(cell, attempt, "a", b"1", size=1_400_000).status == 200, "another version"
    monkeypatch.setattr("controlplane.storage.objects.artifacts.MAX_FILES", 2)
    assert put(cell, attempt.uid, "c", b"").status == 413
    monkeypatch.setattr("controlplane.storage.objects.artifacts.MAX_OBJECT_BYTES", 10)
    assert announce(cell, attempt, "a", b"", size=11).status == 413


def test_only_the_attempts_cell_can_announce(
    submitter: Caller, attempt: Attempt, make_cell: Callable[..., Cell]
) -> None:
    assert announce(make_cell("cell-2"), attempt, "a", LARGE).status == 404
    query = f"?size=1&sha256={digest(b'x')}"
    assert submitter.send("POST", f"/attempts/{attempt.uid}/artifacts/a{query}").status == 401
    assert keys("drafts") == []


def test_open_artifact_reads_ranges(attempt: Attempt, cell: Cell) -> None:
    put(cell, attempt.uid, "a", b"0123456789")
    prefix = str(find_prefix(attempt.uid))
    file = current_store().open_artifact(prefix, "a")
    assert file is not None
    with file:
        assert file.read(3) == b"012"
        file.seek(8)
        assert file.read() == b"89"
    assert current_store().open_artifact(prefix, "b") is None


# ----------------------------------------------------------------------------- inputs


def test_input_is_stored_once_and_read_by_redirect(attempt: Attempt, cell: Cell) -> None:
    found = current_store().put_input(b"an input")
    assert current_store().put_input(b"an input") == found
    assert current_store().read_input(found) == b"an input"
    for known, status in ((found, 302), ("0" * 64, 404), ("x", 404)):
        link = links_at(clock.now())(attempt.group_id, f"/api/v1/store/inputs/{known}")
        assert use_link(link, cell).status == status
    assert keys("inputs") == [f"inputs/{found[:2]}/{found}"]


# ----------------------------------------------------------------------------- output


def test_output_is_appended_and_read_from_any_cursor(
    submitter: Caller, attempt: Attempt, cell: Cell
) -> None:
    assert read(submitter, attempt) == (b"", "0")
    assert upload(cell, attempt.uid, b"one\n").json == {"size": 4}
    assert upload(cell, attempt.uid, b"two\n", offset=4).json == {"size": 8}
    for offset in (0, 2, 9):
        answer = upload(cell, attempt.uid, b"x", offset=offset)
        assert (answer.status, answer.json["size"]) == (409, 8)
    assert read(submitter, attempt) == (b"one\ntwo\n", "8")
    assert read(submitter, attempt, "?after=2") == (b"e\ntwo\n", "8")
    assert read(submitter, attempt, "?after=99") == (b"", "99")
    assert read(submitter, attempt, "?tail=1") == (b"two\n", "8")


def test_output_over_its_size_limit_is_truncated(
    submitter: Caller, attempt: Attempt, cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contents, "MAX_STREAM_BYTES", 6)
    assert upload(cell, attempt.uid, b"1234").status == 200
    for _ in range(2):
        answer = upload(cell, attempt.uid, b"5678", offset=4)
        assert answer.json["size"] == 6
    assert upload(cell, attempt.uid, b"9", offset=6).status == 410
    assert read(submitter, attempt) == (b"123456", "6")


def test_number_of_objects_of_a_stream_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "SEGMENT_BYTES", 40)
    uid, whole = uuid4(), b""
    for number in range(60):
        piece = b"line %d\n" % number
        size = current_store().append_log(uid, "stdout", offset=len(whole), content=piece)
        whole += piece
        assert size == len(whole)
    assert len(keys(log_of(uid, "stdout"))) <= 2 * len(whole) / 40
    found = current_store().read_log(uid, "stdout", offset=0, limit=10_000)
    assert found.content == whole
    for offset in range(0, len(whole), 13):
        part = current_store().read_log(uid, "stdout", offset=offset, limit=50)
        assert part.content == whole[offset : offset + 50]
    for lines in (1, 2, 7, 59, 60, 99):
        start = current_store().find_tail(uid, "stdout", lines=lines, limit=10_000)
        assert whole[start:].count(b"\n") == min(lines, 60)
    assert current_store().find_tail(uid, "stdout", lines=9, limit=12) == len(whole) - 12


def test_two_web_processes_that_receive_the_same_piece_store_it_once() -> None:
    uid, gate = uuid4(), threading.Barrier(2)
    current_store().append_log(uid, "stdout", offset=0, content=b"0")

    def append(content: bytes) -> int:
        gate.wait()
        try:
            return current_store().append_log(uid, "stdout", offset=1, content=content)
        except WrongOffset as error:
            return error.size

    with ThreadPoolExecutor(2) as threads:
        sizes = list(threads.map(append, [b"12345", b"123"]))
    assert set(sizes) <= {4, 6}
    assert current_store().read_log(uid, "stdout", offset=0, limit=99).content in (
        b"012345",
        b"0123",
    )


def test_segments_within_others_are_ignored_and_deleted_with_the_next_piece() -> None:
    uid = uuid4()
    prefix = log_of(uid, "stdout")
    for start, end in ((0, 4), (0, 7), (4, 7), (7, 9)):
        buckets.bucket().put(contents.segment_key(prefix, start, end), b"012345678"[start:end])
    found = current_store().read_log(uid, "stdout", offset=0, limit=99)
    assert found.content == b"012345678"
    assert current_store().append_log(uid, "stdout", offset=9, content=b"9") == 10
    assert keys(prefix) == [contents.segment_key(prefix, 0, 7), contents.segment_key(prefix, 7, 10)]


def test_segment_replaced_while_it_is_read_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uid = uuid4()
    current_store().append_log(uid, "stdout", offset=0, content=b"one")
    listed = contents._list
    once = iter([None])

    def list_and_append(prefix: str) -> contents.Stream:
        found = listed(prefix)
        if next(once, 1) is None:
            current_store().append_log(uid, "stdout", offset=3, content=b"two")
        return found

    monkeypatch.setattr(contents, "_list", list_and_append)
    found = current_store().read_log(uid, "stdout", offset=0, limit=99)
    assert found.content == b"onetwo"


# ----------------------------------------------------------------------------- faults


def test_throttled_requests_are_repeated(
    submitter: Caller, attempt: Attempt, cell: Cell, proxy: FaultyProxy
) -> None:
    proxy.faults = failing(503, times=3)
    assert upload(cell, attempt.uid, b"one\n").json == {"size": 4}
    proxy.faults = failing(503, times=2)
    assert put(cell, attempt.uid, "a", b"one").json == {"size": 3}
    assert read(submitter, attempt) == (b"one\n", "4")


def test_store_that_is_away_is_answered_with_503_and_nothing_is_lost(
    submitter: Caller, attempt: Attempt, cell: Cell, proxy: FaultyProxy
) -> None:
    upload(cell, attempt.uid, b"one\n")
    report_outputs(attempt, a=b"x")
    proxy.faults = failing(503)
    answers = [
        upload(cell, attempt.uid, b"two\n", offset=4),
        put(cell, attempt.uid, "a", b"x"),
        submitter.get(f"/attempts/{attempt.uid}/logs"),
        submitter.get(f"/attempts/{attempt.uid}/artifacts/a"),
    ]
    for answer in answers:
        assert (answer.status, answer.headers["Retry-After"]) == (503, "2")
        assert "store" in answer.json["detail"]
    proxy.faults = lambda request: None
    assert upload(cell, attempt.uid, b"two\n", offset=4).json == {"size": 8}
    assert put(cell, attempt.uid, "a", b"x").json == {"size": 1}
    assert read(submitter, attempt) == (b"one\ntwo\n", "8")


def test_store_that_hangs_is_answered_with_503_before_the_cell_gives_up(
    attempt: Attempt, cell: Cell, proxy: FaultyProxy
) -> None:
    proxy.faults = lambda request: Fault.HANGS
    began = time.monotonic()
    answer = upload(cell, attempt.uid, b"one\n")
    assert (answer.status, answer.headers["Retry-After"]) == (503, "2")
    assert time.monotonic() - began < HTTP_SECONDS
    proxy.faults = lambda request: None
    assert upload(cell, attempt.uid, b"one\n").json == {"size": 4}


def test_submission_fails_whole_while_the_store_is_away(
    submitter: Caller, proxy: FaultyProxy
) -> None:
    proxy.faults = failing(503)
    job = {
        "name": "job",
        "groups": [
            {
                "name": "main",
                "image": "image",
                "inputs": [{"path": "/in/a", "content": "text"}],
            }
        ],
    }
    answer = submitter.post("/jobs", job)
    assert answer.status == 503
    assert not Task.objects.exists()


def test_half_written_upload_is_not_visible(
    submitter: Caller, attempt: Attempt, cell: Cell, proxy: FaultyProxy
) -> None:
    report_outputs(attempt, a=LARGE)
    link = announce(cell, attempt, "a", LARGE).json["url"]
    proxy.faults = lambda request: Fault.CUT if request.method == "PUT" else None
    with pytest.raises(requests.RequestException):
        send(link, LARGE)
    assert confirm(cell, attempt, "a", LARGE).json == {"size": 0}
    assert submitter.get(f"/attempts/{attempt.uid}/artifacts/a").status == 404
    proxy.faults = lambda request: None
    assert send(link, LARGE) == 200
    assert confirm(cell, attempt, "a", LARGE).json == {"size": len(LARGE)}


def test_lost_answers_store_nothing_twice(
    submitter: Caller, attempt: Attempt, cell: Cell, proxy: FaultyProxy
) -> None:
    """The library repeats a request whose answer is lost; the cell repeats those of web."""
    lost = iter([True, False] * 20)
    proxy.faults = lambda request: Fault.LOST if next(lost, False) else None
    whole = b""
    for piece in (b"one\n", b"two\n", b"three\n"):
        for _ in range(20):
            answer = upload(cell, attempt.uid, piece, offset=len(whole))
            if answer.status in (200, 409) and answer.json["size"] == len(whole + piece):
                break
        whole += piece
    proxy.faults = lambda request: None
    assert read(submitter, attempt) == (whole, str(len(whole)))


def test_wrong_credentials_or_bucket_are_unavailable(settings: Any, proxy: FaultyProxy) -> None:
    proxy.faults = failing(403)
    with pytest.raises(StoreUnavailable):
        current_store().put_input(b"x")
    proxy.faults = lambda request: None
    change_setting(settings, store_url=f"s3://nobucket/{uuid4()}")
    with pytest.raises(StoreUnavailable, match="inputs/"):
        current_store().put_input(b"x")


# ----------------------------------------------------------------------------- deletion


def test_purge_takes_one_request_and_objects_are_deleted_over_ticks(
    attempt: Attempt, cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(cell, attempt.uid, b"out")
    put(cell, attempt.uid, "a", b"x")
    announce(cell, attempt, "b", LARGE)
    other = uuid4()
    current_store().append_log(other, "stdout", offset=0, content=b"stays")
    end_and_delete(attempt)
    job = attempt.job_id
    assert purge_deleted(lambda: not Attempt.objects.filter(job_id=job).exists()).jobs == 1
    assert len(keys("discarded")) == 1
    assert purge_deleted(lambda: False).is_done
    assert [key for key in keys("logs") if str(attempt.uid) in key] == []
    assert keys("artifacts") == keys("drafts") == keys("discarded") == []
    assert len(keys("logs")) == 1


def test_interrupted_deletion_continues_with_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.storage.objects.trash._AT_ONCE", 2)
    uids = [uuid4() for _ in range(5)]
    for uid in uids:
        current_store().append_log(uid, "stdout", offset=0, content=b"x")
    assert not current_store().discard_attempts({uid: f"zz/d/p/1/2/{uid}" for uid in uids})
    left = []
    for _ in range(4):
        steps = iter([False])  # at the list; time is over after the first attempts
        done = current_store().delete_discarded(lambda steps=steps: next(steps, True))
        left.append(len(keys("logs")))
        if not done.anything:
            break
    assert left[:3] == [3, 1, 0]
    assert keys("discarded") == []


def test_object_that_cannot_be_deleted_keeps_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    uids = [uuid4(), uuid4()]
    names = iter((UUID(int=1), UUID(int=2)))  # the first list is that of the locked object
    monkeypatch.setattr("controlplane.storage.objects.trash.uuid4", lambda: next(names))
    for uid in uids:
        current_store().append_log(uid, "stdout", offset=0, content=b"x")
        assert not current_store().discard_attempts({uid: f"zz/d/p/1/2/{uid}"})
    locked = f"logs/{uids[0].hex[-2:]}/{uids[0]}"

    def refuse(self: buckets.Bucket, prefix: str) -> None:
        if prefix == locked:
            raise StoreUnavailable("access denied")
        delete_all(self, prefix)

    delete_all = buckets.Bucket.delete_all
    monkeypatch.setattr(buckets.Bucket, "delete_all", refuse)
    done = current_store().delete_discarded(lambda: False)
    assert (done.anything, str(done.fault)) == (True, "access denied")
    assert (len(keys("logs")), len(keys("discarded"))) == (1, 1)


def test_artifact_uploaded_during_a_purge_is_deleted(
    attempt: Attempt, cell: Cell, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = objects.put_piece

    def purge_first(*args: Any, **named: Any) -> Any:
        end_and_delete(attempt)
        assert purge_deleted(lambda: False).jobs == 1
        return work(*args, **named)

    monkeypatch.setattr(objects, "put_piece", purge_first)
    assert put(cell, attempt.uid, "a", b"late").status == 404
    purge_deleted(lambda: False)
    assert keys("artifacts") == keys("drafts") == []


def test_unavailable_store_keeps_the_rows(attempt: Attempt, cell: Cell, proxy: FaultyProxy) -> None:
    put(cell, attempt.uid, "a", b"x")
    end_and_delete(attempt)
    proxy.faults = failing(503)
    done = purge_deleted(lambda: False)
    assert (done.jobs, done.kept) == (0, 1)
    assert isinstance(done.fault, StoreUnavailable)
    assert Attempt.objects.filter(pk=attempt.pk).exists()
    proxy.faults = lambda request: None
    assert purge_deleted(lambda: False).jobs == 1


def leave(uid: UUID, prefix: str) -> None:
    current_store().append_log(uid, "stdout", offset=0, content=b"hello")
    for name in ("table", "folder/part"):
        buckets.bucket().put(f"artifacts/{prefix}/{name}", b"hello")
    buckets.bucket().put(f"{drafts_of(uid)}/begun", b"")


def sweep(now: datetime) -> int:
    """Run a round at a time; the one before is not long ago."""
    Walk.objects.update_or_create(
        name="orphan_files", defaults={"after": "", "scanned_at": now - timedelta(hours=1)}
    )
    done = sweep_orphan_files(StoreWalk(), now=now, is_over=lambda: False)
    assert done.fault is None
    return done.count


def test_unreferenced_objects_are_deleted_after_a_day_and_referenced_ones_kept(
    attempt: Attempt,
) -> None:
    gone = uuid4()
    leave(attempt.uid, str(find_prefix(attempt.uid)))
    kept = keys("logs") + keys("artifacts") + keys("drafts")
    leave(gone, f"zz/default/default/1/2/{gone}")
    buckets.bucket().put("logs/README", b"mine")
    buckets.bucket().put(f"artifacts/zz/{gone}/file", b"mine")
    current_store().put_input(b"an input that no row names")
    assert sweep(clock.now() + timedelta(hours=23)) == 0
    assert sweep(clock.now() + timedelta(hours=25)) == 3
    left = keys("logs") + keys("artifacts") + keys("drafts")
    assert sorted(left) == sorted([*kept, "logs/README", f"artifacts/zz/{gone}/file"])
    assert len(keys("inputs")) == 1


def test_walk_reads_pages_and_skips_the_rest_of_an_attempt(
    monkeypatch: pytest.MonkeyPatch, proxy: FaultyProxy
) -> None:
    monkeypatch.setattr(buckets, "PAGE", 5)
    uids = sorted(UUID(int=number << 8 | 0xAB) for number in range(1, 5))
    for uid in uids:
        for number in range(12):
            buckets.bucket().put(f"{log_of(uid, 'stdout')}/{number:010d}-x", b"")
    pages = list(current_store().walk_store(""))
    found = [entry.uid for page in pages for entry in page.lying]
    assert sorted(set(found)) == uids
    assert len(found) == len(uids)
    assert pages[-1].then == "logs/ab/"
    assert list(current_store().walk_store(pages[-1].then)) == []


def test_orphans_of_a_day_are_deleted_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's clock is real: entries count as old."""
    monkeypatch.setattr(objects, "is_older", lambda entry, instant: True)
    uids = [uuid4() for _ in range(6)]
    for uid in uids:
        current_store().append_log(uid, "stdout", offset=0, content=b"x")
    begin_round()
    walk, counts = StoreWalk(), []
    for _ in range(40):
        counts.append(sweep_orphan_files(walk, now=clock.now(), is_over=lambda: True).count)
        if not keys("logs"):
            break
    assert sum(counts) == len(uids)
    assert max(counts) < len(uids)
