"""S2.4: a completed task is deleted after two minutes, resolved or not."""

import pytest

from controlplane.commands.jobs.one_offs import claim_task
from controlplane.domain.errors import NotFound
from controlplane.models import AuditLine, Callback, Job
from tests.scenarios.diego import cancel, completed, desire, fetch, lifecycle, running
from tests.scenarios.stage import Stage

URL = "https://example.org/done"


def test_task_is_deleted_two_minutes_after_completion(stage: Stage) -> None:
    stage.cell()
    completed(stage)
    stage.wait(118)
    stage.converge()
    assert lifecycle(stage) == "COMPLETED"
    stage.wait(3)
    stage.converge()
    with pytest.raises(NotFound):
        fetch(stage)
    line = AuditLine.objects.get(action="delete.task")
    assert (line.subject, line.actor) == ("task one", "convergence")
    desire(stage)
    stage.settle()
    assert Job.objects.count() == 1
    stage.check()


def test_resolving_task_is_deleted(stage: Stage) -> None:
    stage.cell()
    task_id = completed(stage)
    stage.wait(118)
    claim_task(task_id=task_id, by="me", now=stage.now())
    stage.wait(3)
    stage.converge()
    with pytest.raises(NotFound):
        fetch(stage)


def test_task_is_deleted_while_its_container_is_being_stopped(stage: Stage) -> None:
    stage.cell()
    attempt = running(stage)
    cancel(stage)
    stage.wait(121)
    stage.converge()
    with pytest.raises(NotFound):
        fetch(stage)
    assert Job.objects.filter(pk=attempt.job_id).exists()
    stage.confirm(attempt)
    stage.settle()
    assert not Job.objects.exists()


def test_task_with_a_callback_is_kept_until_it_was_tried_once(stage: Stage) -> None:
    stage.cell()
    completed(stage, completion_callback_url=URL)
    stage.wait(600)
    stage.converge()
    assert lifecycle(stage) == "COMPLETED"
    Callback.objects.update(is_tried=True)
    stage.converge()
    with pytest.raises(NotFound):
        fetch(stage)


def test_running_task_is_kept(stage: Stage) -> None:
    stage.cell()
    running(stage)
    stage.wait(100_000)
    stage.converge()
    assert lifecycle(stage) == "RUNNING"


def test_ordinary_task_is_kept(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.running(delivery="at_most_once")
    stage.succeed(attempt)
    stage.wait(600)
    stage.converge()
    assert stage.state(job) == "SUCCEEDED"
