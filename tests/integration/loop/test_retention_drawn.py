"""Retention deletes what a plain restatement lists, whatever refers to what, and no more."""

from dataclasses import dataclass
from datetime import timedelta
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane import clock
from controlplane.commands.retention import deletion, purge
from controlplane.commands.retention.deletion import delete_expired
from controlplane.commands.retention.purge import purge_deleted
from controlplane.contract.states import TaskState as S
from controlplane.models import (
    Attempt,
    Callback,
    Job,
    JobDependency,
    OneOff,
    Task,
    TaskGroup,
    Transition,
)
from tests.integration.loop.conftest import Loop

CALLBACKS = ("", "new", "tried", "claimed", "delivered")


@dataclass(frozen=True)
class Drawn:
    """A job. `parent`, `retry_of`, `waits_for`: earlier ones by place, modulo; None: no such."""

    state: S
    is_settled: bool
    is_expired: bool
    is_one_off: bool
    callback: str
    parent: int | None
    retry_of: int | None
    waits_for: int | None


places = st.none() | st.integers(0, 7)
drawn = st.builds(
    Drawn,
    state=st.sampled_from([S.SUCCEEDED, S.FAILED, S.FAILED, S.RUNNING]),
    is_settled=st.sampled_from([True, True, False]),
    is_expired=st.sampled_from([True, True, True, False]),
    is_one_off=st.booleans(),
    callback=st.sampled_from(CALLBACKS),
    parent=places,
    retry_of=places,
    waits_for=places,
)


def earlier(place: int, other: int | None) -> int | None:
    return other % place if place and other is not None else None


def create(template: Job, item: Drawn, jobs: list[Job]) -> Job:
    now, past = clock.now(), clock.now() - timedelta(hours=1)
    has_ended = item.state is not S.RUNNING
    links = [earlier(len(jobs), other) for other in (item.parent, item.retry_of, item.waits_for)]
    parent, retry_of, waits_for = (None if n is None else jobs[n] for n in links)
    job = Job.objects.get(pk=template.pk)
    job.pk, job._state.adding = None, True
    job.state, job.finished_at = item.state, past if has_ended else None
    job.settled_at = past if has_ended and item.is_settled else None
    can_expire = item.is_expired and has_ended and (item.is_settled or item.is_one_off)
    job.expires_at = past if can_expire else None
    job.is_one_off, job.guid = item.is_one_off, uuid4().hex
    job.parent, job.retry_of = parent, retry_of
    job.save()
    group = TaskGroup.objects.get(job=template)
    group.pk, group._state.adding, group.job = None, True, job
    group.save()
    task = Task.objects.get(job=template)
    task.pk, task._state.adding, task.job, task.group = None, True, job, group
    task.save()
    if item.is_one_off:
        OneOff.objects.create(task=task, job=job, project=job.project, guid=job.guid, domain="d")
    if item.callback:
        is_claimed, is_over = item.callback == "claimed", item.callback == "delivered"
        Callback.objects.create(
            job=job,
            task=task,
            owner_id=job.owner_id,
            url="http://x/",
            host="x:80",
            due_at=now,
            give_up_at=now + timedelta(days=1),
            created_at=now,
            tries=0 if item.callback == "new" else 1,
            is_tried=item.callback != "new",
            state=item.callback if is_claimed or is_over else "waiting",
            claim=uuid4() if is_claimed else None,
            claimed_until=now if is_claimed else None,
            ended_at=now if is_over else None,
        )
    if waits_for is not None:
        JobDependency.objects.create(job=job, on_job=waits_for, on_name="x", until="succeeded")
    return job


def forget_all() -> None:
    """What the last example left, however it ended."""
    for model in (Callback, OneOff, JobDependency, Attempt, Transition, Task):
        model._default_manager.all().delete()
    Job.objects.update(parent=None, retry_of=None)
    Job.objects.all().delete()


def is_referenced(place: int, items: list[Drawn]) -> bool:
    item = items[place]
    later = range(place + 1, len(items))
    if any(earlier(n, items[n].waits_for) == place for n in later):
        return True
    if any(earlier(n, items[n].parent) == place and items[n].state is S.RUNNING for n in later):
        return True
    if item.callback in ("new", "claimed") or (item.callback == "tried" and not item.is_one_off):
        return True
    readers = {place}
    for n in later:
        if earlier(n, items[n].retry_of) in readers:
            readers.add(n)
    return any(items[n].state is S.RUNNING for n in readers - {place})


@settings(
    max_examples=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(items=st.lists(drawn, min_size=3, max_size=8))
def test_exactly_expired_and_unreferenced_jobs_are_deleted(loop: Loop, items: list[Drawn]) -> None:
    forget_all()
    template = loop.submit(ttl_seconds_after_finished=0)
    jobs: list[Job] = []
    for item in items:
        jobs.append(create(template, item, jobs))
    due = {n for n, job in enumerate(jobs) if job.expires_at is not None}
    goes = {n for n in due if not is_referenced(n, items)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deletion, "PAGE", 3)
        patch.setattr(purge, "PAGE", 3)
        delete_expired(now=clock.now(), is_over=lambda: False)
        hidden = Job.objects.filter(deleted_at__isnull=False).values_list("pk", flat=True)
        assert set(hidden) == {jobs[n].pk for n in goes}
        purge_deleted(lambda: False)
    gone = {n for n in goes if items[n].is_settled}
    kept = {job.pk for n, job in enumerate(jobs) if n not in gone} | {template.pk}
    for model in (Task, TaskGroup):
        assert set(model._default_manager.values_list("job_id", flat=True)) == kept
    assert set(Job.objects.values_list("pk", flat=True)) == kept
    for other in (Attempt, Transition, Callback, OneOff):
        assert set(other._default_manager.values_list("job_id", flat=True)) <= kept
    for job in Job.objects.exclude(pk=template.pk):
        assert {job.parent_id, job.retry_of_id} <= kept | {None}
    assert not JobDependency.objects.exclude(on_job_id__in=kept).exists()
