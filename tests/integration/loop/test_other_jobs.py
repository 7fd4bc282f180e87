"""Jobs that refer to other jobs: dependencies, parents, names that are taken, deletion."""

import pytest

from controlplane import clock
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.retention.deletion import delete_job
from controlplane.contract.states import TaskState as S
from controlplane.domain.errors import Conflict
from controlplane.domain.jobs.submission import JobsRefused, NameTaken
from controlplane.models import Attempt, Job, JobDependency, Task, Transition
from controlplane.queries.convergence.due import list_jobs_with
from controlplane.queries.integrity.invariants import check_all
from tests.integration.loop.conftest import FakeCell, Loop


def finish(loop: Loop, cell: FakeCell, job: Job, state: S = S.SUCCEEDED) -> None:
    loop.place()
    for attempt in loop.attempts(job):
        cell.end(attempt, state, exit_code=0 if state is S.SUCCEEDED else 1, started_at=1.0)


def test_a_job_waits_for_another_and_starts_once_that_succeeded(loop: Loop) -> None:
    cell = loop.cell()
    first = loop.submit(guid="first")
    second = loop.submit(depends_on=[{"job": "first"}], scheduling_timeout_seconds=60)
    loop.place()
    assert loop.states(second) == ["PENDING"]
    assert not loop.attempts(second)
    finish(loop, cell, first)
    loop.converge()
    loop.place()
    assert loop.states(second) == ["ASSIGNED"]
    group = second.groups.get()
    assert group.deadline_at is not None
    assert group.startable_at is not None
    assert (group.deadline_at - group.startable_at).total_seconds() == 60
    assert check_all() == []


@pytest.mark.parametrize(
    ("until", "state", "ends"),
    [
        ("succeeded", S.FAILED, "KILLED"),
        ("finished", S.FAILED, "PENDING"),
        ("started", S.FAILED, "PENDING"),
        ("succeeded", S.SUCCEEDED, "PENDING"),
    ],
)
def test_impossible_dependency_ends_the_dependent_job(
    loop: Loop, until: str, state: S, ends: str
) -> None:
    cell = loop.cell()
    first = loop.submit()
    second = loop.submit(depends_on=[{"job": first.pk, "until": until}])
    finish(loop, cell, first, state)
    loop.converge()
    loop.converge()
    assert loop.state(second) == ends
    if ends == "KILLED":
        assert "can no longer be" in Job.objects.get(pk=second.pk).failure_reason
    assert check_all() == []


def test_met_dependency_survives_the_deletion_of_its_job(loop: Loop) -> None:
    cell = loop.cell()
    first = loop.submit(guid="first")
    second = loop.submit(depends_on=[{"job": "first", "until": "finished"}])
    finish(loop, cell, first)
    delete_job(job_id=first.pk, actor="owner", now=clock.now())
    while Job.objects.filter(pk=first.pk).exists():
        loop.converge()
    assert not Task.objects.filter(job_id=first.pk).exists()
    assert not Attempt.objects.filter(job_id=first.pk).exists()
    assert not Transition.objects.filter(job_id=first.pk).exists()
    loop.place()
    assert loop.states(second) == ["ASSIGNED"]
    assert JobDependency.objects.get().met_at is not None
    assert check_all() == []


def test_dependency_on_a_missing_job_is_refused(loop: Loop) -> None:
    with pytest.raises(JobsRefused, match="there is no earlier job nobody in project default"):
        loop.submit(depends_on=[{"job": "nobody"}])
    assert not Job.objects.exists()


def test_cancelled_parent_ends_three_generations_in_one_tick(loop: Loop) -> None:
    loop.cell()
    jobs = [loop.submit()]
    for _ in range(3):
        jobs.append(loop.submit(parent=jobs[-1].pk))
    loop.place()
    cancel_job(job_id=jobs[0].pk, reason="", force=False, actor="me", now=clock.now())
    loop.converge()
    assert [loop.state(job) for job in jobs] == ["KILLED"] * 4
    assert "its parent" in Job.objects.get(pk=jobs[3].pk).failure_reason
    assert check_all() == []


def test_rows_of_a_deleted_parent_stay_until_its_children_have_ended(loop: Loop) -> None:
    loop.cell()
    parent = loop.submit()
    child = loop.submit(parent=parent.pk)
    cancel_job(job_id=parent.pk, reason="", force=False, actor="me", now=clock.now())
    delete_job(job_id=parent.pk, actor="me", now=clock.now())
    assert Job.objects.get(pk=parent.pk).settled_at is not None
    assert list_jobs_with("deleted_jobs", 10) == []
    loop.converge()
    assert loop.state(child) == "KILLED"
    assert not Job.objects.filter(pk=parent.pk).exists()


def test_succeeded_parent_does_not_end_its_children(loop: Loop) -> None:
    cell = loop.cell()
    parent = loop.submit()
    child = loop.submit(parent=parent.pk)
    finish(loop, cell, parent)
    loop.converge()
    assert loop.state(child) == "RUNNING"


def test_ended_parent_accepts_no_children(loop: Loop) -> None:
    parent = loop.submit()
    cancel_job(job_id=parent.pk, reason="", force=False, actor="me", now=clock.now())
    with pytest.raises(JobsRefused, match="takes no more children"):
        loop.submit(parent=parent.pk)


def test_existing_job_policy_decides_about_a_name_in_use(loop: Loop) -> None:
    first = loop.submit(name="a")
    assert loop.submit(name="a").pk != first.pk
    with pytest.raises(NameTaken, match="has not ended"):
        loop.submit(name="a", existing_job_policy="error")
    newest = Job.objects.latest("pk")
    assert loop.submit(name="a", existing_job_policy="keep").pk == newest.pk


def test_replacement_waits_until_the_replaced_job_has_settled(loop: Loop) -> None:
    cell = loop.cell()
    old = loop.submit(name="a")
    loop.place()
    (attempt,) = loop.attempts(old)
    new = loop.submit(name="a", existing_job_policy="replace")
    loop.converge()
    assert (loop.state(old), loop.state(new)) == ("KILLED", "PENDING")
    assert Job.objects.get(pk=old.pk).failure_reason == f"replaced by job {new.pk}"
    loop.place()
    assert not loop.attempts(new)
    cell.end(attempt, S.KILLED, reason="stopped")
    loop.converge()
    loop.place()
    assert loop.states(new) == ["ASSIGNED"]
    assert check_all() == []


def test_replacement_waits_for_a_job_cancelled_before_it(loop: Loop) -> None:
    cell = loop.cell()
    old = loop.submit(name="a")
    loop.place()
    (attempt,) = loop.attempts(old)
    cancel_job(job_id=old.pk, reason="", force=False, actor="me", now=clock.now())
    assert loop.state(old) == "KILLED"
    new = loop.submit(name="a", existing_job_policy="replace")
    loop.converge()
    loop.place()
    assert not loop.attempts(new)
    assert "cancelled" in Job.objects.get(pk=old.pk).failure_reason
    cell.end(attempt, S.KILLED, reason="stopped")
    loop.converge()
    loop.place()
    assert loop.states(new) == ["ASSIGNED"]
    assert check_all() == []


def test_replacement_does_not_wait_for_a_deleted_job(loop: Loop) -> None:
    loop.cell(cpu=2000)
    old = loop.submit(name="a")
    loop.place()
    cancel_job(job_id=old.pk, reason="", force=False, actor="me", now=clock.now())
    delete_job(job_id=old.pk, actor="me", now=clock.now())
    new = loop.submit(name="a", existing_job_policy="replace")
    loop.converge()
    loop.place()
    assert loop.states(new) == ["ASSIGNED"]


def test_open_job_cannot_be_deleted(loop: Loop) -> None:
    job = loop.submit()
    with pytest.raises(Conflict, match="has not ended"):
        delete_job(job_id=job.pk, actor="me", now=clock.now())


def test_the_guid_of_a_deleted_job_is_free_at_once(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit(guid="g")
    finish(loop, cell, job)
    delete_job(job_id=job.pk, actor="me", now=clock.now())
    assert loop.submit(guid="g").pk != job.pk
