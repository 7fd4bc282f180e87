"""What attempts left: cells bring it in pieces, whole or not at all; people list and read it."""

import errno
import hashlib
import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from controlplane import clock
from controlplane.commands.retention.deletion import delete_job
from controlplane.commands.retention.purge import purge_deleted
from controlplane.contract.artifacts import CHECKPOINT, path_of
from controlplane.contract.states import TaskState
from controlplane.contract.wire import keys
from controlplane.models import Attempt, Cell, Job, Pool, Task
from controlplane.queries.attempts.artifacts import find_prefix, iterate_outputs
from controlplane.queries.attempts.group_specs import links_at, links_of_group
from controlplane.queries.attempts.launch_context import load_launch_context
from controlplane.queries.cells.keys import key_of
from controlplane.storage.folder import append_log, discard_attempts
from controlplane.storage.folder.root import sync_folder
from tests.integration.api.conftest import Answer, Caller, change_setting
from tests.integration.api.links import use_link
from tests.integration.api.test_reading import place, submit


@pytest.fixture
def cell(make_cell: Callable[..., Cell]) -> Cell:
    return make_cell()


@pytest.fixture
def attempt(submitter: Caller, cell: Cell) -> Attempt:
    submit(submitter)
    return place(Task.objects.get(), cell)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def put(
    cell: Cell,
    uid: object,
    name: str,
    content: bytes,
    *,
    whole: bytes | None = None,
    offset: int = 0,
    size: int | None = None,
) -> Answer:
    """PUT a piece of `whole` as a cell does."""
    whole = content if whole is None else whole
    size = len(whole) if size is None else size
    path = f"{path_of(str(uid), name)}?offset={offset}&size={size}&sha256={digest(whole)}"
    headers = signed(cell, path, content)
    return Caller(None).send("PUT", path.removeprefix("/api/v1"), content, **headers)


def signed(cell: Cell, path: str, content: bytes) -> dict[str, str]:
    """The headers of a request of the cell."""
    at = str(int(clock.now().timestamp()))
    text = f"{cell.name}\n{at}\n{path}\n{digest(content)}"
    return {
        "X-Cellrun-Cell": cell.name,
        "X-Cellrun-Time": at,
        "X-Cellrun-Mac": keys.sign(keys.mac_key(key_of(cell), keys.UPLOAD), text),
    }


def report_outputs(attempt: Attempt, **contents: bytes) -> None:
    """What the report of its end does."""
    report_entries(attempt, *(entry(attempt, name, content) for name, content in contents.items()))


def entry(attempt: Attempt, name: str, content: bytes, uri: str = "") -> dict[str, Any]:
    return {
        "name": name,
        "size": len(content),
        "sha256": digest(content),
        "uri": uri or path_of(str(attempt.uid), name),
    }


def report_entries(attempt: Attempt, *entries: dict[str, Any]) -> None:
    Attempt.objects.filter(pk=attempt.pk).update(details={"outputs": entries})


def root() -> Path:
    path: Path = settings.CELLRUN.artifact_root
    return path


def files() -> list[str]:
    return sorted(path.name for path in root().rglob("*") if path.is_file())


# ----------------------------------------------------------------------------- bringing


def test_artifact_is_readable_after_its_last_piece(
    submitter: Caller, attempt: Attempt, cell: Cell
) -> None:
    whole = b"one two three"
    report_outputs(attempt, model=whole)
    assert put(cell, attempt.uid, "model", whole[:4], whole=whole).json == {"size": 4}
    assert submitter.get(f"/attempts/{attempt.uid}/artifacts/model").status == 404
    assert put(cell, attempt.uid, "model", whole[4:], whole=whole, offset=4).json == {"size": 13}
    answer = submitter.get(f"/attempts/{attempt.uid}/artifacts/model")
    assert (answer.status, answer.content) == (200, whole)
    assert answer.headers["X-Cellrun-Sha256"] == digest(whole)
    prefix = find_prefix(attempt.uid)
    assert prefix is not None
    shard, *names = prefix.split("/")
    assert len(shard) == 2
    assert names == [
        "default",
        "default",
        str(attempt.job_id),
        str(attempt.task_id),
        str(attempt.uid),
    ]
    assert (root() / "artifacts" / prefix / "model").read_bytes() == whole


def test_artifact_with_a_name_too_long_for_a_file_is_not_found(
    submitter: Caller, attempt: Attempt
) -> None:
    assert submitter.get(f"/attempts/{attempt.uid}/artifacts/{'x' * 300}").status == 404


def test_piece_at_a_wrong_offset_is_answered_with_the_current_size(
    attempt: Attempt, cell: Cell
) -> None:
    whole = b"one two three"
    assert put(cell, attempt.uid, "a", whole[4:], whole=whole, offset=4).json == {"size": 0}
    assert put(cell, attempt.uid, "a", whole[:4], whole=whole).json == {"size": 4}
    assert put(cell, attempt.uid, "a", whole[:4], whole=whole).json == {"size": 4}
    assert put(cell, attempt.uid, "a", whole[4:], whole=whole, offset=4).json == {"size": 13}
    for offset in (0, 4):  # a cell that was killed begins again
        answer = put(cell, attempt.uid, "a", whole[offset:], whole=whole, offset=offset)
        assert answer.json == {"size": 13}


def test_empty_artifact_is_stored(submitter: Caller, attempt: Attempt, cell: Cell) -> None:
    report_outputs(attempt, nothing=b"")
    assert put(cell, attempt.uid, "nothing", b"").json == {"size": 0}
    assert submitter.get(f"/attempts/{attempt.uid}/artifacts/nothing").content == b""


def test_content_that_differs_from_its_announcement_is_discarded(
    attempt: Attempt, cell: Cell
) -> None:
    assert put(cell, attempt.uid, "a", b"else", whole=b"that").status == 409
    assert put(cell, attempt.uid, "a", b"longer", whole=b"short").status == 409
    assert not [name for name in files() if not name.endswith(".done")]
    assert put(cell, attempt.uid, "a", b"that", whole=b"that").json == {"size": 4}


def test_new_version_replaces_the_old_one(submitter: Caller, attempt: Attempt, cell: Cell) -> None:
    put(cell, attempt.uid, "a", b"old")
    put(cell, attempt.uid, "a", b"newer")
    report_outputs(attempt, a=b"newer")
    assert submitter.get(f"/attempts/{attempt.uid}/artifacts/a").content == b"newer"


def test_artifact_size_per_attempt_is_limited(settings: Any, attempt: Attempt, cell: Cell) -> None:
    change_setting(settings, max_artifact_mib=1)
    assert put(cell, attempt.uid, "a", b"x" * 900_000).status == 200
    assert put(cell, attempt.uid, "a", b"y" * 900_000).status == 200, "in the place of the first"
    answer = put(cell, attempt.uid, "b", b"x", size=200_000)
    assert (answer.status, "1048576" in answer.json["detail"]) == (413, True)


def test_pool_limits_the_artifact_size_per_attempt(
    settings: Any, attempt: Attempt, cell: Cell
) -> None:
    change_setting(settings, max_artifact_mib=2)
    Pool.objects.update(job_limits={"max_artifact_mib": 1})
    assert put(cell, attempt.uid, "a", b"x" * 900_000).status == 200
    answer = put(cell, attempt.uid, "b", b"x", size=200_000)
    assert (answer.status, "1048576" in answer.json["detail"]) == (413, True)
    path = f"{path_of(str(attempt.uid), 'c')}?size={2**20 + 1}&sha256={digest(b'')}"
    headers = signed(cell, path, b"")
    announced = Caller(None).send("POST", path.removeprefix("/api/v1"), **headers)
    assert announced.status == 413
    Pool.objects.update(job_limits={"max_artifact_mib": 3})
    assert put(cell, attempt.uid, "b", b"x", size=200_000).status == 200
    assert put(cell, attempt.uid, "c", b"x", size=1_000_000).status == 413, "of the installation"


def test_unfinished_upload_counts_with_its_announced_size(
    settings: Any, attempt: Attempt, cell: Cell
) -> None:
    change_setting(settings, max_artifact_mib=1)
    assert put(cell, attempt.uid, "a", b"x", size=900_000).status == 200
    assert put(cell, attempt.uid, "b", b"x", size=200_000).status == 413
    assert put(cell, attempt.uid, "b", b"x", size=100_000).status == 200
    assert put(cell, attempt.uid, "c", b"x", size=100_000).status == 413
    assert put(cell, attempt.uid, "a", b"y", size=800_000).status == 200, "another version of it"
    assert put(cell, attempt.uid, "c", b"x", size=100_000).status == 200


def test_artifact_count_per_attempt_is_limited(
    monkeypatch: pytest.MonkeyPatch, attempt: Attempt, cell: Cell
) -> None:
    monkeypatch.setattr("controlplane.storage.folder.artifacts.MAX_FILES", 2)
    assert put(cell, attempt.uid, "a", b"x").status == 200
    assert put(cell, attempt.uid, "b", b"x", size=2).status == 200
    assert put(cell, attempt.uid, "c", b"").status == 413
    assert put(cell, attempt.uid, "a", b"y").status == 200


def test_artifacts_of_an_ended_attempt_cannot_be_changed(
    submitter: Caller, attempt: Attempt, cell: Cell
) -> None:
    put(cell, attempt.uid, "a", b"good")
    report_outputs(attempt, a=b"good")
    Attempt.objects.filter(pk=attempt.pk).update(
        state=TaskState.SUCCEEDED, finished_at=clock.now(), released_at=clock.now()
    )
    assert put(cell, attempt.uid, "a", b"evil").status == 409
    assert put(cell, attempt.uid, "b", b"more").status == 409
    assert submitter.get(f"/attempts/{attempt.uid}/artifacts/a").content == b"good"


def test_earlier_version_can_be_uploaded_again(
    submitter: Caller, attempt: Attempt, cell: Cell
) -> None:
    for content in (b"old", b"newer", b"old"):
        assert put(cell, attempt.uid, "a", content).json == {"size": len(content)}
    report_outputs(attempt, a=b"old")
    assert submitter.get(f"/attempts/{attempt.uid}/artifacts/a").content == b"old"


def test_new_folders_of_an_artifact_are_synced(
    monkeypatch: pytest.MonkeyPatch, attempt: Attempt, cell: Cell
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr("controlplane.storage.folder.artifacts.sync_folder", synced.append)
    put(cell, attempt.uid, "a/b/c", b"x")
    folder = root() / "artifacts" / str(find_prefix(attempt.uid)) / "a" / "b"
    assert {folder, *folder.parents} - {root(), *root().parents} <= set(synced)


@pytest.mark.parametrize("name", ["../../x", "a/../../x", "a//b", "./a", "a\\b", "a/.", "a\nb"])
def test_unsafe_artifact_name_is_refused(attempt: Attempt, cell: Cell, name: str) -> None:
    assert put(cell, attempt.uid, name, b"x").status in (400, 401, 404)
    assert files() == []


@pytest.mark.parametrize("name", ["a b/ü.txt", "50%/x+y&z=1;v?#", "a/.hidden", "~'(x)!*@:,$"])
def test_unusual_artifact_names_are_preserved(
    submitter: Caller, attempt: Attempt, cell: Cell, name: str
) -> None:
    report_entries(attempt, entry(attempt, name, b"x"))
    assert put(cell, attempt.uid, name, b"x").json == {"size": 1}
    path = path_of(str(attempt.uid), name).removeprefix("/api/v1")
    assert submitter.get(path).content == b"x"


def test_file_and_folder_of_the_same_name_conflict(attempt: Attempt, cell: Cell) -> None:
    assert put(cell, attempt.uid, "a", b"x").status == 200
    assert put(cell, attempt.uid, "a/b", b"x").status == 409
    assert put(cell, attempt.uid, "b/c", b"x").status == 200
    for _ in range(2):  # also when it is tried again
        assert put(cell, attempt.uid, "b", b"x").status == 409


def test_complete_draft_left_by_a_killed_web_process_is_finished_on_retry(
    submitter: Caller, attempt: Attempt, cell: Cell
) -> None:
    report_outputs(attempt, a=b"one two")
    for offset in (0, 3):  # a cell begins again, or goes on
        assert put(cell, attempt.uid, "a", b"one", whole=b"one two").json == {"size": 3}
        [draft] = (path for path in (root() / "drafts").rglob("*") if path.is_file())
        draft.write_bytes(b"one two")
        answer = put(cell, attempt.uid, "a", b"one two"[offset:], whole=b"one two", offset=offset)
        assert answer.json == {"size": 7}
        found = submitter.get(f"/attempts/{attempt.uid}/artifacts/a")
        assert (found.status, found.content) == (200, b"one two")
        put(cell, attempt.uid, "a", b"another")


@pytest.mark.parametrize(("call", "left"), [("fsync", 0), ("replace", 1)])
def test_upload_that_failed_on_a_full_disk_succeeds_on_retry(
    monkeypatch: pytest.MonkeyPatch,
    submitter: Caller,
    attempt: Attempt,
    cell: Cell,
    call: str,
    left: int,
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    report_outputs(attempt, a=b"whole")
    with monkeypatch.context() as full:
        full.setattr(os, call, fail)
        assert put(cell, attempt.uid, "a", b"whole").status == 500
    assert len(files()) == left
    assert put(cell, attempt.uid, "a", b"whole").json == {"size": 5}
    assert submitter.get(f"/attempts/{attempt.uid}/artifacts/a").content == b"whole"


def test_concurrent_purge_does_not_prevent_an_upload(
    monkeypatch: pytest.MonkeyPatch, submitter: Caller, attempt: Attempt, cell: Cell
) -> None:
    report_outputs(attempt, a=b"x")
    prefix, other = str(find_prefix(attempt.uid)), uuid.uuid4()
    neighbour = str(Path(prefix).with_name(str(other)))
    task = (root() / "artifacts" / prefix).parent
    purged: list[Path] = []

    def purge(folder: Path) -> None:
        sync_folder(folder)
        if folder == task.parent and not purged:
            purged.append(folder)
            discard_attempts({other: neighbour})
            assert not task.exists(), "it was empty"

    monkeypatch.setattr("controlplane.storage.folder.artifacts.sync_folder", purge)
    assert put(cell, attempt.uid, "a", b"x").json == {"size": 1}
    assert purged
    assert submitter.get(f"/attempts/{attempt.uid}/artifacts/a").content == b"x"


def test_only_the_attempts_cell_can_upload_artifacts(
    submitter: Caller, attempt: Attempt, make_cell: Callable[..., Cell]
) -> None:
    assert put(make_cell("cell-2"), attempt.uid, "a", b"x").status == 404
    query = f"?offset=0&size=1&sha256={digest(b'x')}"
    path = f"/attempts/{attempt.uid}/artifacts/a{query}"
    assert submitter.send("PUT", path, b"x").status == 401
    assert files() == []


def test_piece_with_a_negative_offset_is_refused(attempt: Attempt, cell: Cell) -> None:
    assert put(cell, attempt.uid, "a", b"x", offset=-1).status == 400


# ----------------------------------------------------------------------------- reading


def test_artifact_list_requires_access_to_the_job(
    submitter: Caller, anonymous: Caller, attempt: Attempt
) -> None:
    path = f"/attempts/{attempt.uid}/artifacts"
    assert submitter.get(path).json == {"results": [], "next": None}
    report_outputs(attempt, b=b"2", a=b"1")
    found = submitter.get(path).json["results"]
    assert [item["name"] for item in found] == ["a", "b"]
    link = path_of(str(attempt.uid), "a")
    assert found[0] == {**entry(attempt, "a", b"1"), "link": link}
    assert anonymous.get(path).status == 401
    assert anonymous.get(f"{path}/a").status == 401
    assert submitter.get(f"/attempts/{uuid.uuid4()}/artifacts").status == 404
    assert submitter.get(f"{path}/c").status == 404


def test_reading_an_external_artifact_answers_its_uri(submitter: Caller, attempt: Attempt) -> None:
    report_entries(attempt, entry(attempt, "a", b"1", uri="s3://bucket/a"))
    answer = submitter.get(f"/attempts/{attempt.uid}/artifacts/a")
    assert (answer.status, answer.json["uri"]) == (409, "s3://bucket/a")


@pytest.mark.parametrize(
    "uri", ["/api/v1/store/results/1", path_of(str(uuid.UUID(int=1)), "model"), "//elsewhere/a"]
)
def test_no_link_is_signed_to_files_outside_the_attempt(
    submitter: Caller, cell: Cell, uri: str
) -> None:
    submit(submitter, checkpoint_path="/ckpt")
    attempt = place(Task.objects.get(), cell)
    report_entries(
        attempt, entry(attempt, "model", b"x", uri=uri), entry(attempt, CHECKPOINT, b"x", uri=uri)
    )
    assert submitter.get(f"/attempts/{attempt.uid}/artifacts").json["results"] == []
    Task.objects.filter(pk=attempt.task_id).update(
        state=TaskState.SUCCEEDED, finished_at=clock.now()
    )
    assert not list(
        iterate_outputs(attempt.group_id, "model", links_of_group(attempt.group_id, clock.now()))
    )
    assert load_launch_context(follow_up(attempt).uid).checkpoint is None


def test_symlink_out_of_the_store_is_not_followed(
    submitter: Caller, attempt: Attempt, cell: Cell, tmp_path: Path
) -> None:
    put(cell, attempt.uid, "a", b"x")
    prefix = find_prefix(attempt.uid)
    assert prefix is not None
    (tmp_path / "outside").write_text("secret")
    (root() / "artifacts" / prefix / "link").symlink_to(tmp_path / "outside")
    report_outputs(attempt, link=b"secret")
    assert submitter.get(f"/attempts/{attempt.uid}/artifacts/link").status == 404


# ----------------------------------------------------------------------------- for others


def test_launch_context_has_the_output_base_and_the_last_checkpoint(
    submitter: Caller, cell: Cell
) -> None:
    submit(submitter, checkpoint_path="/ckpt", output_base="s3://bucket/base/")
    task = Task.objects.get()
    first = place(task, cell)
    put(cell, first.uid, CHECKPOINT, b"state")
    report_entries(first, entry(first, CHECKPOINT, b"state"))
    context = load_launch_context(first.uid)
    assert context.checkpoint is None
    assert context.output_base == f"s3://bucket/base/{find_prefix(first.uid)}"
    second = follow_up(first)
    found = load_launch_context(second.uid).checkpoint
    assert found is not None
    assert (found["sha256"], found["size"]) == (digest(b"state"), 5)
    assert use_link(found["url"], cell).content == b"state"
    assert use_link(found["url"].replace("signature=", "signature=0"), cell).status == 403
    third = follow_up(second)
    left = load_launch_context(third.uid).checkpoint
    assert left is not None
    assert (left["uri"], left["sha256"]) == (found["uri"], found["sha256"]), "the second left none"


def follow_up(attempt: Attempt) -> Attempt:
    """The attempt has failed, and another one was placed."""
    Attempt.objects.filter(pk=attempt.pk).update(
        state=TaskState.FAILED, finished_at=clock.now(), released_at=clock.now()
    )
    attempt.pk, attempt.number, attempt.state = uuid.uuid4(), attempt.number + 1, TaskState.ASSIGNED
    attempt._state.adding = True
    attempt.save()
    return attempt


def test_group_outputs_are_listed_by_task_index(
    submitter: Caller, anonymous: Caller, cell: Cell
) -> None:
    submit(submitter, replicas=2)
    for task in Task.objects.order_by("index"):
        attempt = place(task, cell)
        Task.objects.filter(pk=task.pk).update(state=TaskState.SUCCEEDED, finished_at=clock.now())
        put(cell, attempt.uid, "model/ü a", b"%d" % task.index)
        report_entries(
            attempt,
            entry(attempt, "model/ü a", b"%d" % task.index),
            entry(attempt, "modelling", b"not asked for"),
            entry(attempt, "model/b", b"far", uri="s3://bucket/b"),
        )
    group_id = Task.objects.all()[0].group_id
    link = links_at(clock.now())(group_id, f"/api/v1/store/outputs/{group_id}/model")
    answer = use_link(link, cell)
    lines = [json.loads(line) for line in answer.content.splitlines()]
    assert [(line["name"], line["named"]) for line in lines] == [
        ("0/model/b", True),
        ("0/model/ü a", False),
        ("1/model/b", True),
        ("1/model/ü a", False),
    ]
    assert use_link(lines[3]["url"], cell).content == b"1"
    assert (lines[0]["url"], lines[0]["sha256"]) == ("s3://bucket/b", digest(b"far"))


def test_purging_a_job_deletes_its_artifacts_and_logs(
    submitter: Caller, attempt: Attempt, cell: Cell
) -> None:
    other = submit(submitter)
    kept = place(Task.objects.get(job_id=other), cell)
    for each in (attempt, kept):
        put(cell, each.uid, "a/b", b"x")
        put(cell, each.uid, "c", b"x", size=2)
        append_log(each.uid, "stdout", offset=0, content=b"x")
    Attempt.objects.filter(pk=attempt.pk).update(
        state=TaskState.SUCCEEDED, finished_at=clock.now(), released_at=clock.now()
    )
    Task.objects.filter(job_id=attempt.job_id).update(
        state=TaskState.SUCCEEDED, finished_at=clock.now()
    )
    Job.objects.filter(pk=attempt.job_id).update(
        state=TaskState.SUCCEEDED, finished_at=clock.now(), settled_at=clock.now()
    )
    delete_job(job_id=attempt.job_id, actor="ann", now=clock.now())
    assert submitter.get(f"/attempts/{attempt.uid}/artifacts").status == 404
    assert purge_deleted(lambda: False).jobs == 1
    assert not any(str(attempt.uid) in str(path) for path in root().rglob("*"))
    left = {path.name for path in root().rglob("*") if str(kept.uid) in str(path)}
    assert {"b", "stdout"} <= left
