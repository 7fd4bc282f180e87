"""S2.3: a client claims a completed task before it deletes it: RESOLVING, for one client."""

from datetime import timedelta
from uuid import UUID

import pytest

from controlplane.commands.jobs.one_offs import claim_task, delete_resolved_task, release_claim
from controlplane.commands.jobs.rerun import retry_job
from controlplane.commands.retention.deletion import delete_job
from controlplane.contract.states import TaskState as S
from controlplane.domain.errors import Conflict, NotFound
from controlplane.models import Attempt, AuditLine, Job, Task
from tests.scenarios.diego import cancel, completed, desire, fetch, lifecycle, listed, running
from tests.scenarios.stage import Stage

OTHER = UUID("00000000-0000-4000-8000-000000000000")


def claim(stage: Stage, task_id: int, by: str = "me") -> UUID:
    return claim_task(task_id=task_id, by=by, now=stage.now())


def delete(stage: Stage, task_id: int, claim: UUID | None = None) -> None:
    delete_resolved_task(task_id=task_id, claim=claim, actor="me", why="resolved", now=stage.now())


def test_second_claim_is_refused_and_names_the_claimant(stage: Stage) -> None:
    stage.cell()
    task_id = completed(stage)
    claim(stage, task_id, by="ann")
    assert lifecycle(stage) == "RESOLVING"
    with pytest.raises(Conflict, match="task one is RESOLVING already, by ann"):
        claim(stage, task_id)


@pytest.mark.parametrize("state", ["PENDING", "ASSIGNED", "RUNNING"])
def test_only_a_completed_task_can_be_claimed(stage: Stage, state: str) -> None:
    stage.cell()
    job = desire(stage)
    if state != "PENDING":
        stage.place()
    if state == "RUNNING":
        stage.start(stage.last(job))
    with pytest.raises(Conflict, match="task one has not completed"):
        claim(stage, stage.task(job).pk)
    assert stage.states(job) == [state]


def test_failed_task_can_be_claimed(stage: Stage) -> None:
    task_id = stage.task(desire(stage)).pk
    cancel(stage)
    claim(stage, task_id)
    assert (lifecycle(stage), fetch(stage)["failed"]) == ("RESOLVING", True)


def test_ordinary_task_cannot_be_claimed(stage: Stage) -> None:
    job = stage.submit_small()
    with pytest.raises(Conflict, match="is not a one-off task"):
        claim(stage, stage.task(job).pk)


def test_task_is_deleted_only_while_resolving_and_by_its_claim(stage: Stage) -> None:
    stage.cell()
    task_id = completed(stage)
    with pytest.raises(Conflict, match="is not RESOLVING: claim it first"):
        delete(stage, task_id)
    mine = claim(stage, task_id)
    with pytest.raises(Conflict, match="is RESOLVING by another claim"):
        delete(stage, task_id, OTHER)
    delete(stage, task_id, mine)
    with pytest.raises(NotFound):
        fetch(stage)
    with pytest.raises(NotFound):
        delete(stage, task_id, mine)


def test_resolving_task_can_be_deleted_without_the_claim(stage: Stage) -> None:
    stage.cell()
    task_id = completed(stage)
    claim(stage, task_id)
    delete(stage, task_id)
    assert listed(stage) == []


def test_claim_expires_after_half_a_minute(stage: Stage) -> None:
    stage.cell()
    task_id = completed(stage)
    late = claim(stage, task_id)
    stage.wait(29)
    stage.converge()
    assert lifecycle(stage) == "RESOLVING"
    stage.wait(2)
    stage.converge()
    assert lifecycle(stage) == "COMPLETED"
    with pytest.raises(Conflict, match="is not RESOLVING"):
        delete(stage, task_id, late)
    mine = claim(stage, task_id)
    with pytest.raises(Conflict, match="is RESOLVING by another claim"):
        delete(stage, task_id, late)
    delete(stage, task_id, mine)


def test_claim_expires_without_convergence(stage: Stage) -> None:
    stage.cell()
    task_id = completed(stage)
    late = claim(stage, task_id)
    stage.wait(29)
    with pytest.raises(Conflict, match="is RESOLVING already"):
        claim(stage, task_id)
    assert (lifecycle(stage), listed(stage, lifecycles=["RESOLVING"])) == ("RESOLVING", ["one"])
    stage.wait(2)
    assert (lifecycle(stage), listed(stage, lifecycles=["RESOLVING"])) == ("COMPLETED", [])
    assert listed(stage, lifecycles=["COMPLETED"]) == ["one"]
    with pytest.raises(Conflict, match="its claim has expired"):
        delete(stage, task_id, late)
    delete(stage, task_id, claim(stage, task_id))


def test_updated_at_moves_with_the_claim_and_with_its_end(stage: Stage) -> None:
    stage.cell()
    task_id = completed(stage)
    times = [fetch(stage)["updated_at"]]

    def is_moved() -> bool:
        times.append(fetch(stage)["updated_at"])
        assert fetch(stage)["updated_at_ns"] == int(times[-1].timestamp() * 10**6) * 1000
        return bool(times[-1] > times[-2])

    stage.wait(10)
    assert not is_moved()
    begun = stage.now()
    mine = claim(stage, task_id)
    assert is_moved()
    assert times[-1] >= begun
    stage.wait(10)
    assert not is_moved()
    assert release_claim(task_id=task_id, claim=mine, now=stage.now())
    assert is_moved()
    # Another claim, which no client follows up, is over after 30 s, with or without convergence.
    stage.wait(10)
    begun = stage.now()
    claim(stage, task_id)
    assert is_moved()
    stage.wait(31)
    assert is_moved()
    assert times[-1] - begun < timedelta(seconds=30.1)
    stage.converge()
    assert lifecycle(stage) == "COMPLETED"
    assert not is_moved()


def test_job_of_a_resolving_task_cannot_be_deleted_without_the_claim(stage: Stage) -> None:
    stage.cell()
    task_id = completed(stage)
    job_id = Task.objects.get(pk=task_id).job_id
    mine = claim(stage, task_id, by="ann")
    with pytest.raises(Conflict, match="is RESOLVING: its job is deleted by that claim alone"):
        delete_job(job_id=job_id, actor="me", now=stage.now())
    delete(stage, task_id, mine)


def test_deleting_the_job_of_a_task_requires_its_current_claim(
    stage: Stage,
) -> None:
    """Diego: a client that deletes a task "must first successfully move it" to RESOLVING."""
    stage.cell()
    task_id = completed(stage)
    job_id = Task.objects.get(pk=task_id).job_id
    with pytest.raises(Conflict, match="task one is not RESOLVING: claim it first"):
        delete_job(job_id=job_id, actor="me", now=stage.now())
    late = claim(stage, task_id)
    stage.wait(31)
    with pytest.raises(Conflict, match="is not RESOLVING any more"):
        delete_job(job_id=job_id, claim=late, actor="me", now=stage.now())
    mine = claim(stage, task_id)
    with pytest.raises(Conflict, match="is RESOLVING by another claim"):
        delete_job(job_id=job_id, claim=late, actor="me", now=stage.now())
    delete_job(job_id=job_id, claim=mine, actor="me", now=stage.now())
    with pytest.raises(NotFound):
        fetch(stage)
    with pytest.raises(NotFound):
        delete_job(job_id=job_id, actor="me", now=stage.now())


def test_a_job_that_replaces_others_of_its_name_deletes_no_completed_task(stage: Stage) -> None:
    stage.cell()
    completed(stage)
    replacing = {"name": "one", "existing_job_policy": "replace"}
    stage.submit_small(**replacing)
    stage.settle()
    assert (lifecycle(stage), fetch(stage)["failed"]) == ("COMPLETED", False)
    # Of one that runs it is the end, as after a cancel: its client still has to claim it.
    running(stage, guid="two")
    stage.submit_small(**{**replacing, "name": "two"})
    stage.settle()
    assert (lifecycle(stage, "two"), fetch(stage, "two")["failed"]) == ("COMPLETED", True)
    claim(stage, fetch(stage, "two")["id"])


def test_retry_of_its_job_neither_deletes_nor_claims_the_task(stage: Stage) -> None:
    stage.cell()
    attempt = running(stage)
    stage.fail(attempt)
    retry_job(job_id=attempt.job_id, guid=None, actor="me", now=stage.now())
    stage.settle()
    assert (lifecycle(stage), fetch(stage)["failed"]) == ("COMPLETED", True)
    with pytest.raises(Conflict):
        delete_job(job_id=attempt.job_id, actor="me", now=stage.now())


def test_claim_is_refused_for_the_job_of_ordinary_tasks(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.placed()
    stage.succeed(attempt)
    with pytest.raises(Conflict, match="is not that of a one-off task"):
        delete_job(job_id=job.pk, claim=OTHER, actor="me", now=stage.now())
    delete_job(job_id=job.pk, actor="me", now=stage.now())


def test_deleted_task_leaves_an_audit_line_and_frees_its_guid(stage: Stage) -> None:
    stage.cell()
    task_id = completed(stage)
    delete(stage, task_id, claim(stage, task_id))
    line = AuditLine.objects.get(action="delete.task")
    assert (line.subject, line.actor) == ("task one", "me")
    assert stage.task(desire(stage, domain="other")).pk != task_id


def test_guid_is_free_while_the_old_container_is_being_stopped(stage: Stage) -> None:
    cell = stage.cell()
    old = running(stage)
    cancel(stage)
    delete(stage, old.task_id, claim(stage, old.task_id))
    new = running(stage)
    assert (fetch(stage)["id"], lifecycle(stage)) == (new.task_id, "RUNNING")
    assert cell.stop_orders() == [str(old.uid)]
    # Reports of its cell on the old one do not change the new one.
    stage.confirm(old)
    assert lifecycle(stage) == "RUNNING"
    stage.succeed(new)
    stage.settle()
    assert (fetch(stage)["state"], fetch(stage)["failed"]) == ("SUCCEEDED", False)
    assert not Job.objects.filter(pk=old.job_id).exists()
    stage.check()


def test_rows_of_a_deleted_task_stay_until_its_container_is_gone(stage: Stage) -> None:
    stage.cell()
    old = running(stage)
    cancel(stage)
    delete(stage, old.task_id, claim(stage, old.task_id))
    stage.settle()
    assert Attempt.objects.filter(uid=old.uid, released_at=None).exists()
    stage.confirm(old)
    stage.settle()
    assert not Attempt.objects.filter(uid=old.uid).exists()


def test_late_report_does_not_change_a_claimed_task(stage: Stage) -> None:
    stage.cell()
    attempt = running(stage)
    cancel(stage)
    claim(stage, attempt.task_id)
    stage.end(attempt, S.SUCCEEDED, exit_code=0)
    assert (lifecycle(stage), fetch(stage)["state"]) == ("RESOLVING", "KILLED")
