"""What attempts of deleted jobs left goes in the time of a tick, however many files it is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings

from controlplane import clock
from controlplane.commands.retention.deletion import delete_job
from controlplane.commands.retention.purge import purge_deleted
from controlplane.contract.states import TaskState
from controlplane.models import Attempt, Cell, Job, Task
from controlplane.storage import folder as store
from tests.integration.api.conftest import Caller
from tests.integration.api.test_artifacts import put
from tests.integration.api.test_logs import upload
from tests.integration.api.test_reading import place, submit


@pytest.fixture
def cell(make_cell: Callable[..., Cell]) -> Cell:
    return make_cell()


@pytest.fixture
def attempt(submitter: Caller, cell: Cell) -> Attempt:
    submit(submitter)
    return place(Task.objects.get(), cell)


def root() -> Path:
    folder: Path = settings.CELLRUN.artifact_root
    return folder


def files_of(attempt: Attempt) -> list[Path]:
    """Return the files that the store has of an attempt, without the discarded ones."""
    return [
        path
        for folder in ("artifacts", "drafts", "logs")
        for path in (root() / folder).rglob("*")
        if str(attempt.uid) in path.parts[:-1]
    ]


def end_and_delete(attempt: Attempt) -> None:
    """End and settle its job, and delete it."""
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


def test_files_move_to_discarded_with_the_rows_and_are_deleted_over_ticks(
    attempt: Attempt, cell: Cell
) -> None:
    for number in range(5):
        put(cell, attempt.uid, f"folder-{number}/file", b"x")
    end_and_delete(attempt)
    # Time is over as soon as the rows are gone.
    job = Job.objects.filter(pk=attempt.job_id)
    assert purge_deleted(lambda: not job.exists()).jobs == 1
    assert not any(str(attempt.uid) in str(path) for path in root().rglob("*"))
    assert len(list(root().rglob("file"))) == 5
    ticks = 0
    while any((root() / "discarded").iterdir()):
        answers = iter([False] * 4)  # at the clock: one for each file, and one for each folder
        purge_deleted(lambda answers=answers: next(answers, True))  # type: ignore[misc]
        ticks += 1
        assert ticks < 20
    assert ticks > 1
    assert not any(root().rglob("file"))


def test_purge_out_of_time_is_continued_by_the_next_tick(attempt: Attempt, cell: Cell) -> None:
    put(cell, attempt.uid, "file", b"x")
    end_and_delete(attempt)
    assert purge_deleted(lambda: True).jobs == 0
    assert Attempt.objects.filter(pk=attempt.pk).exists()
    assert purge_deleted(lambda: False).jobs == 1


def purge_before(monkeypatch: pytest.MonkeyPatch, attempt: Attempt, store: Any, name: str) -> None:
    """All of the attempt goes just before `name` of the store is called."""
    work = getattr(store, name)

    def come_in_between(*args: Any, **named: Any) -> Any:
        end_and_delete(attempt)
        assert purge_deleted(lambda: False).jobs == 1
        return work(*args, **named)

    monkeypatch.setattr(store, name, come_in_between)


@pytest.mark.parametrize("offset", [0, 3])
def test_output_uploaded_during_a_purge_is_discarded(
    monkeypatch: pytest.MonkeyPatch, attempt: Attempt, cell: Cell, offset: int
) -> None:
    purge_before(monkeypatch, attempt, store, "append_log")
    assert upload(cell, attempt.uid, b"late", offset=offset).status == 404
    assert files_of(attempt) == []


@pytest.mark.parametrize("size", [4, 5, 2**50])
def test_artifact_uploaded_during_a_purge_is_discarded(
    monkeypatch: pytest.MonkeyPatch, attempt: Attempt, cell: Cell, size: int
) -> None:
    purge_before(monkeypatch, attempt, store, "put_piece")
    assert put(cell, attempt.uid, "file", b"late", size=size).status == 404
    assert files_of(attempt) == []


def test_output_for_a_settled_deleted_job_is_refused(attempt: Attempt, cell: Cell) -> None:
    end_and_delete(attempt)
    assert upload(cell, attempt.uid, b"late").status == 404
    assert files_of(attempt) == []


def test_output_of_an_unsettled_deleted_job_is_kept(attempt: Attempt, cell: Cell) -> None:
    end_and_delete(attempt)
    Job.objects.filter(pk=attempt.job_id).update(settled_at=None)
    assert upload(cell, attempt.uid, b"heard").json == {"size": 5}
    assert [path.name for path in files_of(attempt)] == ["stdout"]
