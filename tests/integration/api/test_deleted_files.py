"""What attempts of deleted jobs left goes in the time of a tick, however many files it is."""

from collections.abc import Callable
from pathlib import Path

import pytest
from django.conf import settings

from controlplane import clock
from controlplane.commands.deletion import delete_job, purge_jobs
from controlplane.contract.states import TaskState
from controlplane.models import Attempt, Cell, Job, Task
from tests.integration.api.conftest import Caller
from tests.integration.api.test_artifacts import put
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


def end_and_delete(attempt: Attempt) -> None:
    """Its job has ended and settled, and somebody deletes it."""
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


def test_many_files_are_out_of_the_way_with_the_rows_and_deleted_bit_by_bit(
    attempt: Attempt, cell: Cell
) -> None:
    for number in range(5):
        put(cell, attempt.uid, f"folder-{number}/file", b"x")
    end_and_delete(attempt)
    # Time is over as soon as the rows are gone.
    job = Job.objects.filter(pk=attempt.job_id)
    assert purge_jobs([attempt.job_id], is_over=lambda: not job.exists()) == 1
    assert not any(str(attempt.uid) in str(path) for path in root().rglob("*"))
    assert len(list(root().rglob("file"))) == 5
    ticks = 0
    while any((root() / "discarded").iterdir()):
        looks = iter([False] * 4)  # at the clock: one for each file, and one for each folder
        purge_jobs([], is_over=lambda looks=looks: next(looks, True))  # type: ignore[misc]
        ticks += 1
        assert ticks < 20
    assert ticks > 1
    assert not any(root().rglob("file"))


def test_when_the_time_of_a_tick_is_over_the_next_goes_on_with_the_rows(
    attempt: Attempt, cell: Cell
) -> None:
    put(cell, attempt.uid, "file", b"x")
    end_and_delete(attempt)
    assert purge_jobs([attempt.job_id], is_over=lambda: True) == 0
    assert Attempt.objects.filter(pk=attempt.pk).exists()
    assert purge_jobs([attempt.job_id]) == 1
