"""S1.7: what has ended is kept for its time, and then goes with everything that it left.

Source: Flyte, "Garbage Collection": terminal work is stamped with the time at which it finished,
and the collector "deletes those that have exceeded the configured maxTTL (default 1 hour)".
Deviation: the default here is 7 days.
"""

from datetime import timedelta
from pathlib import Path

import pytest
from django.conf import settings

from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.retention.deletion import delete_expired
from controlplane.models import Attempt, AuditLine, Job, Task, Transition
from tests.scenarios.cells import LiveStage, RealCell
from tests.scenarios.stage import Stage

HOUR, DAY = 3600, 86_400
TTL = {"ttl_seconds_after_finished": HOUR}


def is_kept(job: Job) -> bool:
    """Whether anything of the job is there."""
    if Job.objects.filter(pk=job.pk, deleted_at=None).exists():
        return True
    left = [model.objects.filter(job_id=job.pk).exists() for model in (Task, Attempt, Transition)]
    assert left == [False] * 3
    return False


def after(stage: Stage, seconds: float) -> None:
    """So long afterwards convergence has come by."""
    stage.wait(seconds)
    stage.settle()


def test_job_is_kept_for_its_ttl_and_then_deleted(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.running(**TTL)
    stage.succeed(attempt)
    after(stage, HOUR - 2)
    assert is_kept(job)
    after(stage, 4)
    assert not is_kept(job)
    line = AuditLine.objects.get(action="delete.job")
    assert line.actor == "convergence"
    stage.check()


def test_job_without_a_ttl_is_kept_seven_days(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.running()
    stage.succeed(attempt)
    after(stage, 7 * DAY - 60)
    assert is_kept(job)
    after(stage, 120)
    assert not is_kept(job)


def test_ttl_counts_from_the_end_of_the_job(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.running(**TTL)
    after(stage, 3 * HOUR)
    stage.succeed(attempt)
    after(stage, HOUR - 2)
    assert is_kept(job)
    after(stage, 4)
    assert not is_kept(job)


@pytest.mark.parametrize("end", ["fail", "cancel"])
def test_failed_and_killed_jobs_are_kept_for_their_ttl(stage: Stage, end: str) -> None:
    stage.cell()
    job, attempt = stage.running(**TTL)
    if end == "fail":
        stage.fail(attempt)
    else:
        cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=stage.now())
        stage.confirm(attempt)
    after(stage, HOUR - 2)
    assert is_kept(job)
    after(stage, 4)
    assert not is_kept(job)


def test_open_job_is_kept_however_old_it_is(stage: Stage) -> None:
    stage.cell(cpu=100)
    running, _ = stage.running(ttl_seconds_after_finished=0)
    waiting = stage.submit_small(ttl_seconds_after_finished=0)
    after(stage, 30 * DAY)
    assert is_kept(running)
    assert is_kept(waiting)


def test_job_is_kept_until_its_container_is_confirmed_gone(
    stage: Stage,
) -> None:
    stage.cell()
    job, attempt = stage.running(ttl_seconds_after_finished=0)
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=stage.now())
    after(stage, DAY)
    assert is_kept(job)
    stage.confirm(attempt)
    after(stage, 1)
    assert not is_kept(job)


def test_parent_is_kept_until_its_child_has_ended(stage: Stage) -> None:
    stage.cell()
    parent, attempt = stage.running(**TTL)
    child = stage.submit_small(parent=parent.pk)
    stage.succeed(attempt)
    after(stage, 2 * HOUR)
    assert is_kept(parent)
    stage.place()
    stage.succeed(stage.last(child))
    after(stage, 1)
    assert not is_kept(parent)
    assert is_kept(child)


def files_of(attempt: Attempt) -> list[Path]:
    """What web keeps of the attempt."""
    root: Path = settings.CELLRUN.artifact_root
    found = root.rglob("*")
    return [path for path in found if str(attempt.uid) in str(path) and path.is_file()]


def test_files_of_an_expired_job_are_deleted(live: LiveStage, process_cell: RealCell) -> None:
    script = "echo model > $CELLRUN_ROOT/out/model; echo done"
    outputs = [{"path": "/out/model"}]
    job = live.run(process_cell, script, outputs=outputs, **TTL)
    live.until_settled(job)
    attempt = live.last(job)
    live.until(lambda: len(files_of(attempt)) >= 2)  # the output and what it printed
    later = live.now() + timedelta(seconds=HOUR + 1)
    deleted, _ = delete_expired(now=later, is_over=lambda: False)
    assert deleted == 1
    live.until(lambda: not Job.objects.filter(pk=job.pk).exists() and not files_of(attempt))
