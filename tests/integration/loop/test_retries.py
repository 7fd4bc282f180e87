"""Retry of jobs: what did not succeed becomes a new job, once; minima, gangs, results, links."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection

from controlplane import clock
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.jobs.rerun import retry_job
from controlplane.commands.jobs.submit import Submission
from controlplane.commands.retention.deletion import delete_job
from controlplane.commands.tenancy.secrets import delete_secret, put_secret
from controlplane.contract.states import TaskState as S
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.jobs.submission import GuidTaken, JobsRefused
from controlplane.models import Job, Pool, Project, Task, TaskGroup, Transition
from controlplane.queries.attempts.artifacts import iterate_results
from controlplane.queries.integrity.invariants import check_all
from controlplane.ticks import convergence
from tests.integration.loop.conftest import FakeCell, Loop


def group(name: str, **fields: Any) -> dict[str, Any]:
    small = {"cpu": 0.1, "memory": "64Mi"}
    return {"name": name, "image": "x", "command": ["true"], "resources": small, **fields}


def play(loop: Loop, cell: FakeCell, job: Job, *failing: str) -> None:
    """Run what can run; tasks named like `main.1` fail, the others succeed with their name."""
    for _ in range(len(loop.tasks(job)) + 1):
        loop.place()
        for attempt in loop.attempts(job):
            if attempt.released_at is not None:
                continue
            task = Task.objects.select_related("group").get(pk=attempt.task_id)
            name = f"{task.group.name}.{task.index}"
            if name in failing:
                cell.end(attempt, S.FAILED, exit_code=1, started_at=1.0)
            else:
                cell.end(attempt, S.SUCCEEDED, exit_code=0, started_at=1.0, result=name)
        loop.converge()


def retry(job: Job, guid: str | None = None) -> Job:
    done = retry_job(job_id=job.pk, guid=guid, actor="owner", now=clock.now())
    return Job.objects.get(pk=done.job_id)


def cancel(job: Job) -> None:
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())


def names(job: Job) -> list[str]:
    tasks = Task.objects.filter(job=job).select_related("group").order_by("id")
    return [f"{task.group.name}.{task.index}" for task in tasks]


def test_retry_contains_only_unsuccessful_tasks_with_their_indexes(loop: Loop) -> None:
    cell = loop.cell()
    old = loop.submit(name="sweep", groups=[group("main", replicas=4)], max_task_failures=2)
    play(loop, cell, old, "main.1", "main.3")
    new = retry(old)
    assert names(new) == ["main.1", "main.3"]
    row = new.groups.get()
    assert (row.replicas, row.task_count, row.min_available) == (4, 2, 2)
    assert (new.retry_of_id, new.owner, new.min_available) == (old.pk, old.owner, 2)
    assert new.max_task_failures == 2
    assert new.spec == old.spec
    step = Transition.objects.get(job_id=new.pk)
    assert (step.reason, step.actor) == ("submitted", "owner")
    play(loop, cell, new)
    assert loop.state(new) == "SUCCEEDED"
    assert check_all() == []


def test_retry_reduces_minima_by_the_succeeded_tasks(loop: Loop) -> None:
    cell = loop.cell()
    old = loop.submit(
        groups=[group("a", replicas=4, min_available=3), group("b", replicas=3, min_available=1)],
        min_available=5,
    )
    play(loop, cell, old, "a.0", "a.1", "b.2")
    assert loop.state(old) == "FAILED"
    new = retry(old)
    assert names(new) == ["a.0", "a.1", "b.2"]
    assert [row.min_available for row in new.groups.order_by("position")] == [1, 0]
    # Four of five have succeeded; of the three that are left, two may fail.
    assert (new.min_available, new.max_task_failures) == (1, 2)
    play(loop, cell, new, "a.1", "b.2")
    assert loop.state(new) == "SUCCEEDED"
    assert check_all() == []


def test_retry_keeps_a_succeeded_group_for_its_dependents(loop: Loop) -> None:
    cell = loop.cell()
    reads = [{"path": "/in/", "from": {"group": "prepare", "result": True}}]
    old = loop.submit(
        groups=[
            group("prepare", replicas=2),
            group("total", inputs=reads, depends_on=[{"group": "prepare"}]),
        ]
    )
    play(loop, cell, old, "total.0")
    new = retry(old)
    assert names(new) == ["total.0"]
    loop.place()
    assert loop.states(new) == ["ASSIGNED"]
    results = [json.loads(line) for line in iterate_results(new.groups.get(name="prepare").pk)]
    assert results == [
        {"name": "0", "content": "prepare.0"},
        {"name": "1", "content": "prepare.1"},
    ]
    play(loop, cell, new)
    assert loop.state(new) == "SUCCEEDED"
    assert check_all() == []


def test_retry_of_a_retry_reads_results_of_all_earlier_jobs(loop: Loop) -> None:
    cell = loop.cell()
    reads = [{"path": "/in/", "from": {"group": "prepare", "result": True}}]
    old = loop.submit(
        groups=[group("prepare", replicas=3), group("total", inputs=reads)], max_task_failures=0
    )
    play(loop, cell, old, "prepare.1", "prepare.2")
    second = retry(old)
    assert names(second) == ["prepare.1", "prepare.2", "total.0"]
    play(loop, cell, second, "prepare.2")
    third = retry(second)
    assert names(third) == ["prepare.2", "total.0"]
    assert third.retry_of_id == second.pk
    play(loop, cell, third, "total.0")
    fourth = retry(third)
    results = [json.loads(line) for line in iterate_results(fourth.groups.get(name="prepare").pk)]
    assert [item["content"] for item in results] == ["prepare.0", "prepare.1", "prepare.2"]
    play(loop, cell, fourth)
    assert loop.state(fourth) == "SUCCEEDED"
    assert check_all() == []


def test_retry_that_reads_deleted_results_is_refused(loop: Loop) -> None:
    cell = loop.cell()
    reads = [{"path": "/in/", "from": {"group": "prepare", "result": True}}]
    old = loop.submit(groups=[group("prepare"), group("total", inputs=reads), group("other")])
    play(loop, cell, old, "total.0", "other.0")
    second = retry(old)
    with pytest.raises(Conflict, match=f"job {second.pk}, a retry of job {old.pk}, has not ended"):
        delete_job(job_id=old.pk, actor="me", now=clock.now())
    play(loop, cell, second, "total.0")
    delete_job(job_id=old.pk, actor="me", now=clock.now())
    with pytest.raises(Conflict, match="group total reads the results of group prepare, which"):
        retry(second)
    loop.converge()
    with pytest.raises(Conflict, match="submit the job again"):
        retry(second)


def test_gang_is_retried_as_a_smaller_gang(loop: Loop) -> None:
    cell = loop.cell()
    old = loop.submit(groups=[group("main", replicas=4)], coscheduled=True)
    loop.place()
    first, second, *_ = loop.attempts(old)
    cell.end(first, S.SUCCEEDED, exit_code=0, started_at=1.0)
    cell.end(second, S.FAILED, exit_code=1, started_at=1.0)
    loop.converge()
    for attempt in loop.attempts(old)[2:]:
        cell.end(attempt, S.KILLED, reason="stopped")
    assert Job.objects.get(pk=old.pk).settled_at is not None
    new = retry(old)
    assert new.coscheduled
    assert (names(new), new.min_available) == (["main.1", "main.2", "main.3"], 3)
    loop.place()
    assert loop.states(new) == ["ASSIGNED"] * 3
    assert check_all() == []


def test_open_succeeded_or_deleted_job_cannot_be_retried(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit()
    with pytest.raises(Conflict, match=f"job {job.pk} has not ended"):
        retry(job)
    play(loop, cell, job)
    with pytest.raises(Conflict, match="there is nothing to retry"):
        retry(job)
    delete_job(job_id=job.pk, actor="me", now=clock.now())
    with pytest.raises(NotFound):
        retry(job)
    with pytest.raises(NotFound):
        retry_job(job_id=job.pk + 1000, guid=None, actor="me", now=clock.now())


def test_retry_is_refused_until_the_job_and_its_retries_have_settled(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit()
    loop.place()
    (attempt,) = loop.attempts(job)
    cancel(job)
    with pytest.raises(Conflict, match="still being stopped"):
        retry(job)
    cell.end(attempt, S.KILLED, reason="stopped")
    again = retry(job)
    with pytest.raises(Conflict, match=f"job {again.pk} retries the same tasks and has not ended"):
        retry(job)
    play(loop, cell, again, "main.0")
    third = retry(again)
    with pytest.raises(Conflict, match=f"job {third.pk} retries the same tasks"):
        retry(job)
    play(loop, cell, third)
    assert names(retry(job)) == ["main.0"]


def test_a_guid_makes_a_retry_safe_to_repeat(loop: Loop) -> None:
    cell = loop.cell()
    job = loop.submit(guid="first")
    other = loop.submit(guid="other")
    for one in (job, other):
        play(loop, cell, one, "main.0")
    new = retry(job, "again")
    assert retry(job, "again").pk == new.pk
    assert "guid" not in new.spec
    assert new.guid == "again"
    for guid in ("other", "first"):
        with pytest.raises(GuidTaken):
            retry(job, guid)
    with pytest.raises(GuidTaken):
        retry(other, "again")
    with pytest.raises(GuidTaken):
        loop.submit(guid="again")


@pytest.mark.usefixtures("many_slots")
@pytest.mark.parametrize("guid", ["again", None])
def test_concurrent_retries_create_one_job(loop: Loop, guid: str | None) -> None:
    cell = loop.cell()
    job = loop.submit(groups=[group("main", replicas=20)])
    play(loop, cell, job, *(f"main.{n}" for n in range(10)))
    start = threading.Barrier(4)

    def one(_: int) -> Submission | None:
        start.wait()
        try:
            return retry_job(job_id=job.pk, guid=guid, actor="me", now=clock.now())
        except Conflict:
            return None
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(one, range(4)))
    made = [item for item in done if item is not None]
    assert sum(item.created for item in made) == 1
    assert len({item.job_id for item in made}) == 1
    assert len(made) == (4 if guid else 1)
    assert Job.objects.filter(retry_of=job).count() == 1
    assert Task.objects.filter(job__retry_of=job).count() == 10
    assert check_all() == []


def test_concurrent_retry_deletion_and_cancels_stay_consistent(
    loop: Loop,
) -> None:
    cell = loop.cell()
    for _ in range(10):
        parent = loop.submit(start_after="2100-01-01T00:00:00Z")
        first = loop.submit()
        job = loop.submit(parent=parent.pk, depends_on=[{"job": first.pk, "until": "finished"}])
        cancel(job)
        start = threading.Barrier(5)
        acts = (
            lambda job=job: retry_job(job_id=job.pk, guid=None, actor="me", now=clock.now()),
            lambda job=job: delete_job(job_id=job.pk, actor="me", now=clock.now()),
            lambda parent=parent: cancel(parent),
            lambda first=first: cancel(first),
            lambda: convergence.run(woken=True),
        )

        def act(what: Callable[[], object], start: threading.Barrier = start) -> str:
            start.wait()
            try:
                what()
            except (Conflict, NotFound) as refusal:
                return type(refusal).__name__
            finally:
                connection.close()
            return "done"

        with ThreadPoolExecutor(5) as pool:
            done = list(pool.map(act, acts))
        assert set(done[:2]) in ({"done", "NotFound"}, {"done", "Conflict"})
        assert done[2:] == ["done"] * 3
        loop.converge()
        loop.converge()
        assert check_all() == []
        for again in Job.objects.filter(retry_of=job):
            # Its parent had ended before, so it has no parent, or it ended with it.
            assert (again.parent_id is None) == (again.finished_at is None)
    play(loop, cell, Job.objects.latest("pk"))


def test_retry_over_the_owner_limit_is_refused(loop: Loop, settings: Any) -> None:
    cell = loop.cell()
    job = loop.submit(groups=[group("main", replicas=3)])
    play(loop, cell, job, "main.0", "main.1")
    settings.CELLRUN = settings.CELLRUN.model_copy(update={"max_unfinished_tasks_per_user": 1})
    with pytest.raises(JobsRefused, match="would make 2 unfinished tasks of user owner"):
        retry(job)
    assert Job.objects.count() == 1


def test_retry_depends_on_the_retry_of_a_failed_dependency(loop: Loop) -> None:
    cell = loop.cell()
    first = loop.submit(guid="first")
    second = loop.submit(depends_on=[{"job": "first"}])
    play(loop, cell, first, "main.0")
    assert loop.state(second) == "KILLED"
    again = retry(first)
    new = retry(second)
    assert new.spec["depends_on"] == [{"job": again.pk, "until": "succeeded"}]
    loop.place()
    assert loop.states(new) == ["PENDING"]
    play(loop, cell, again)
    loop.place()
    assert loop.states(new) == ["ASSIGNED"]
    assert check_all() == []


def test_failed_dependency_without_a_retry_kills_the_retry(loop: Loop) -> None:
    cell = loop.cell()
    first = loop.submit(guid="first")
    second = loop.submit(depends_on=[{"job": "first"}])
    play(loop, cell, first, "main.0")
    new = retry(second)
    loop.converge()
    loop.converge()
    assert loop.state(new) == "KILLED"
    assert "can no longer be" in Job.objects.get(pk=new.pk).failure_reason
    delete_job(job_id=first.pk, actor="me", now=clock.now())
    with pytest.raises(Conflict, match=f"depends on job {first.pk}, which was deleted"):
        retry(new)


def test_retry_keeps_open_dependencies_and_drops_met_ones(loop: Loop) -> None:
    cell = loop.cell()
    met, open_ = loop.submit(), loop.submit(start_after="2100-01-01T00:00:00Z")
    job = loop.submit(depends_on=[{"job": met.pk}, {"job": open_.pk, "until": "started"}])
    play(loop, cell, met)
    cancel(job)
    new = retry(job)
    assert [(row.on_job_id, row.until) for row in new.dependencies.all()] == [(open_.pk, "started")]
    assert new.waits_for_jobs


def test_retry_is_a_child_while_the_parent_is_open(loop: Loop) -> None:
    cell = loop.cell()
    parent = loop.submit(start_after="2100-01-01T00:00:00Z")
    child = loop.submit(parent=parent.pk)
    play(loop, cell, child, "main.0")
    again = retry(child)
    assert again.parent_id == parent.pk
    cancel(parent)
    loop.converge()
    assert loop.state(again) == "KILLED"
    last = retry(again)
    assert last.parent_id is None
    assert "parent" not in last.spec


def test_retry_of_a_replacement_waits_for_the_replaced_job(loop: Loop) -> None:
    cell = loop.cell()
    old = loop.submit(name="a")
    loop.place()
    (attempt,) = loop.attempts(old)
    new = loop.submit(name="a", existing_job_policy="replace")
    cancel(new)
    with pytest.raises(Conflict, match=f"containers of job {old.pk}, which job {new.pk} replaced"):
        retry(new)
    loop.converge()
    cell.end(attempt, S.KILLED, reason="stopped")
    again = retry(new)
    assert "existing_job_policy" not in again.spec
    loop.place()
    assert loop.states(again) == ["ASSIGNED"]


def test_ten_thousand_tasks_are_retried_at_once(loop: Loop) -> None:
    job = loop.submit(replicas=10_000)
    cancel(job)
    while Job.objects.get(pk=job.pk).settled_at is None:
        loop.converge()
    new = retry(job)
    assert TaskGroup.objects.get(job=new).counts[S.PENDING] == 10_000
    assert Task.objects.filter(job=new, state=S.PENDING).count() == 10_000


def test_retry_with_mounts_no_longer_allowed_is_refused(loop: Loop) -> None:
    cell = loop.cell()
    Pool.objects.update(allowed_mounts=[{"path": "/data"}])
    job = loop.submit(groups=[group("main", mounts=[{"source": "/data/a", "target": "/in"}])])
    play(loop, cell, job, "main.0")
    Pool.objects.update(allowed_mounts=[])
    with pytest.raises(Conflict, match="allows no mount of /data/a"):
        retry(job)
    Pool.objects.update(allowed_mounts=[{"path": "/"}])
    assert names(retry(job)) == ["main.0"]


def test_retry_with_a_deleted_secret_is_refused(loop: Loop) -> None:
    cell, project_id = loop.cell(), Project.objects.get().pk

    def write() -> None:
        now = clock.now()
        put_secret(project_id=project_id, name="token", value=b"x", writer=None, now=now)

    write()
    job = loop.submit(groups=[group("main", secrets=[{"name": "token", "env": "T"}])])
    play(loop, cell, job, "main.0")
    delete_secret(project_id=project_id, name="token")
    with pytest.raises(Conflict, match="has no secret token"):
        retry(job)
    write()
    assert names(retry(job)) == ["main.0"]
