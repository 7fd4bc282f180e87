"""`cellrun artifacts` and `cellrun cp` against the real API: lists, ranges, many tasks."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cellrun import Session
from cellrun.downloads.files import Download
from controlplane import clock
from controlplane.commands.cells.operate import enroll_cell
from controlplane.contract.artifacts import path_of
from controlplane.contract.states import TaskState
from controlplane.models import Attempt, Cell, Task
from controlplane.queries.attempts.artifacts import find_prefix
from controlplane.storage.folder import put_piece
from controlplane.storage.interface import AnnouncedFile
from tests.harness.store_limits import reserve_nothing
from tests.integration.api.conftest import change_setting
from tests.integration.api.test_reading import place
from tests.integration.client.test_against_the_api import SPEC, call
from tests.integration.client.test_against_the_api import command as command
from tests.integration.client.test_against_the_api import served as served
from tests.integration.client.test_against_the_api import session as session

pytestmark = pytest.mark.django_db(transaction=True)

MODEL = bytes(range(256)) * 4_000
NAMES = ("model", "plots/a b/50%?#.png", "empty")
TASKS = 25  # more than a page of artifacts


def store(attempt: Attempt, name: str, content: bytes) -> dict[str, Any]:
    sha256 = hashlib.sha256(content).hexdigest()
    prefix = find_prefix(attempt.uid)
    assert prefix is not None
    file = AnnouncedFile(attempt.uid, prefix, name, len(content), sha256)
    put_piece(file, offset=0, content=content, most=lambda: 1 << 30, reserve=reserve_nothing)
    uri = path_of(str(attempt.uid), name)
    return {"name": name, "size": len(content), "sha256": sha256, "uri": uri}


@pytest.fixture
def job_id(session: Session, settings: Any, tmp_path: Path) -> int:
    """A job of TASKS tasks, each with the artifacts NAMES."""
    change_setting(settings, artifact_root=tmp_path / "store")
    job_id = session.submit({**SPEC, "replicas": TASKS})["id"]
    enroll_cell(name="cell-1", pool="default", now=clock.now())
    cell, now = Cell.objects.get(), clock.now()
    for task in Task.objects.order_by("id"):
        fields = {"state": TaskState.SUCCEEDED, "finished_at": now, "released_at": now}
        attempt = place(task, cell, **fields)
        contents = dict(zip(NAMES, (MODEL, b"%d" % task.index, b""), strict=True))
        outputs = [store(attempt, name, content) for name, content in contents.items()]
        Attempt.objects.filter(pk=attempt.pk).update(details={"outputs": outputs})
    return job_id


def files_in(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_artifacts_of_many_tasks_are_listed_downloaded_and_continued(
    command: CliRunner,
    session: Session,
    job_id: int,
    tmp_path: Path,
) -> None:
    listed = json.loads(call(command, "artifacts", str(job_id), "-o", "json").stdout)
    assert [task["index"] for task in listed] == list(range(TASKS))
    assert [item["name"] for item in listed[24]["artifacts"]] == sorted(NAMES)
    out = tmp_path / "out"
    first: Any = next(it for it in listed[0]["artifacts"] if it["name"] == "model")
    partial = Download(first, out / "main" / "0", ("model",)).partial
    partial.parent.mkdir(parents=True)
    partial.write_bytes(MODEL[:300_000])
    with session.open_artifact(first, 300_000) as (start, pieces):
        assert (start, b"".join(pieces)) == (300_000, MODEL[300_000:])
    done = call(command, "artifacts", str(job_id), "--get", str(out), "--parallel", "8")
    assert done.exit_code == 0, done.stderr
    found = files_in(out)
    assert set(found) == {f"main/{n}/{name}" for n in range(TASKS) for name in NAMES}
    assert all(found[f"main/{n}/model"] == MODEL for n in range(TASKS))
    assert found["main/24/plots/a b/50%?#.png"] == b"24"
    again = call(command, "artifacts", str(job_id), "--get", str(out))
    assert f"{3 * TASKS} of them complete before" in again.stderr


def test_cp_copies_a_file_a_folder_and_to_standard_output(
    command: CliRunner,
    job_id: int,
    tmp_path: Path,
) -> None:
    assert call(command, "cp", f"{job_id}:main.24:model", "-").stdout_bytes == MODEL
    out = str(tmp_path / "out")
    assert call(command, "cp", f"{job_id}:7:plots", out).exit_code == 0
    assert files_in(tmp_path / "out") == {"a b/50%?#.png": b"7"}
    uid = Task.objects.get(index=3).attempt_uid
    assert call(command, "cp", f"{uid}:pl*/*/*png", out).exit_code == 0
    assert files_in(tmp_path / "out") == {"a b/50%?#.png": b"7", "50%?#.png": b"3"}
    refused = call(command, "cp", f"{job_id}:main.25:model", out)
    assert (refused.exit_code, "has no task main.25" in refused.stderr) == (2, True)


def test_file_that_another_process_completes_meanwhile_is_complete(
    command: CliRunner, job_id: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, open_artifact = tmp_path / "out", Session.open_artifact

    @contextmanager
    def complete_meanwhile(session: Session, item: Any, start: int = 0) -> Iterator[Any]:
        with open_artifact(session, item, start) as opened:
            yield opened
        download = Download(item, tmp_path, ("out",))
        download.partial.replace(out)

    monkeypatch.setattr(Session, "open_artifact", complete_meanwhile)
    done = call(command, "cp", f"{job_id}:main.0:model", str(out))
    assert (done.exit_code, out.read_bytes()) == (0, MODEL), done.stderr


def test_artifact_with_the_path_of_the_api_in_its_name_is_read(
    session: Session, job_id: int
) -> None:
    attempt = Attempt.objects.get(task__index=0)
    name = "docs/api/v1/jobs"
    item = store(attempt, name, b"a page")
    Attempt.objects.filter(pk=attempt.pk).update(details={"outputs": [item]})
    assert b"".join(session.read_artifact(str(attempt.uid), name)) == b"a page"


def test_purged_file_is_reported_by_name(
    command: CliRunner,
    job_id: int,
    tmp_path: Path,
) -> None:
    for path in (tmp_path / "store").rglob("model"):
        path.unlink()
    done = call(command, "artifacts", str(job_id), "--get", str(tmp_path / "out"))
    assert (done.exit_code, f"{TASKS} of {3 * TASKS} files failed" in done.stderr) == (2, True)
    assert "main/0/model: " in done.stderr
    assert "no longer stored [404]" in done.stderr
    assert "… and 5 more" in done.stderr
    assert len(files_in(tmp_path / "out")) == 2 * TASKS
