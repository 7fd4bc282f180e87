"""A task's place in the queue is the order in which tasks are really placed, one by one."""

import pytest

from controlplane import clock
from controlplane.commands.jobs.move import move_job
from controlplane.contract.states import TaskState as S
from controlplane.domain.errors import Conflict, NotPermitted
from controlplane.domain.jobs.moves import QueueEnd
from controlplane.domain.placement.reasons.queue_position import QueuePlace
from controlplane.domain.roles import Role
from controlplane.domain.state.states import Band
from controlplane.models import Job, Pool, Quota, Shape, Task, Transition
from controlplane.queries.integrity.invariants import check_all
from controlplane.queries.views import queue_position
from controlplane.queries.views.queue_position import find_queue_place
from tests.integration.loop.conftest import Loop
from tests.integration.loop.conftest import loop as loop

LATER = "2099-01-01T00:00:00Z"


def place_of(task_id: int) -> QueuePlace:
    found = find_queue_place(task_id, now=clock.now())
    assert found is not None
    return found


def a_crowd(loop: Loop) -> list[int]:
    """Jobs of all bands, with children and groups; ids of the tasks that may start."""
    jobs = [loop.submit(replicas=2, band="batch"), loop.submit(replicas=3)]
    group = {"image": "x", "resources": {"cpu": 1, "memory": "64Mi"}}
    jobs.append(loop.submit(groups=[{"name": name, **group} for name in ("b", "a")]))
    jobs.append(loop.submit(parent=jobs[1].pk))
    jobs.append(loop.submit(band="production", resources={"cpu": 0.9, "memory": "64Mi"}))
    loop.submit(start_after=LATER)
    loop.submit(depends_on=[{"job": jobs[0].pk}])
    return list(Task.objects.filter(job__in=jobs).values_list("pk", flat=True))


@pytest.mark.parametrize("sequencer", ["fifo", "lifo"])
def test_queue_position_is_the_order_of_placement(loop: Loop, sequencer: str) -> None:
    Pool.objects.update(sequencer=sequencer, preemption=False)
    tasks = a_crowd(loop)
    places = {task: place_of(task) for task in tasks}
    assert {place.of for place in places.values()} == {len(tasks)}
    assert not any(place.is_estimate for place in places.values())
    cell = loop.cell(cpu=1000)
    for position in range(1, len(tasks) + 1):
        loop.place()
        [task] = Task.objects.filter(state=S.ASSIGNED)
        assert places[task.pk].position == position
        assert find_queue_place(task.pk, now=clock.now()) is None
        before = [other for other in tasks if places[other].position == position - 1]
        if before and Task.objects.get(pk=before[0]).job_id != task.job_id:
            assert places[task.pk].behind_job == Task.objects.get(pk=before[0]).job_id
        [attempt] = [one for one in loop.attempts(task.job) if one.task_id == task.pk]
        cell.end(attempt, S.SUCCEEDED, exit_code=0)
    assert not Task.objects.filter(pk__in=tasks, state=S.PENDING).exists()


@pytest.mark.parametrize(
    ("sequencer", "ahead", "behind"), [("fifo", 1 + 3, 1), ("lifo", 1 + 1 + 2, 3)]
)
def test_queue_position_is_an_estimate_with_many_waiting_groups(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, sequencer: str, ahead: int, behind: int
) -> None:
    Pool.objects.update(sequencer=sequencer)
    jobs: list[Job] = [loop.submit(band="production")]
    jobs += [loop.submit(replicas=count) for count in (3, 2, 2, 1)]
    jobs.append(loop.submit(band="batch"))
    task = loop.tasks(jobs[2])[1]
    exact = place_of(task.pk)
    monkeypatch.setattr(queue_position, "MAX_GROUPS", 3)
    found = place_of(task.pk)
    assert (found.position, found.of, found.is_estimate) == (ahead + 2, 10, True)
    assert (found.behind_job, found.behind_name) == (jobs[behind].pk, "job")
    assert (found.position, found.behind_job) == (exact.position, exact.behind_job)


def test_task_waiting_for_something_else_has_no_queue_position(loop: Loop) -> None:
    for more in ({"start_after": LATER}, {"depends_on": [{"job": loop.submit().pk}]}):
        [task] = loop.tasks(loop.submit(**more))
        assert find_queue_place(task.pk, now=clock.now()) is None
    Task.objects.update(not_before="2099-01-01T00:00Z")
    assert find_queue_place(task.pk - 1, now=clock.now()) is None
    assert find_queue_place(999_999, now=clock.now()) is None


@pytest.mark.parametrize("sequencer", ["fifo", "lifo"])
def test_moved_jobs_have_the_position_in_which_they_are_placed(loop: Loop, sequencer: str) -> None:
    Pool.objects.update(sequencer=sequencer, preemption=False)
    first, second, third, fourth = (loop.submit() for _ in range(4))
    child = loop.submit(parent=first.pk)
    for job, to in ((fourth, "front"), (third, "front"), (second, "end")):
        move(job, QueueEnd(to))
    tasks = [loop.tasks(job)[0].pk for job in (third, fourth, child, first, second)]
    assert [place_of(task).position for task in tasks] == [1, 2, 3, 4, 5]
    cell = loop.cell(cpu=1000)
    for task in tasks:
        loop.place()
        [placed] = Task.objects.filter(state=S.ASSIGNED)
        assert placed.pk == task
        [attempt] = [one for one in loop.attempts(placed.job) if one.task_id == task]
        cell.end(attempt, S.SUCCEEDED, exit_code=0)


def test_only_operators_pass_jobs_of_other_owners(loop: Loop) -> None:
    job = loop.submit()
    with pytest.raises(NotPermitted, match="only operators may move a job to its front"):
        move(job, QueueEnd.FRONT, Role.MANAGER)
    move(job, QueueEnd.END, Role.SUBMITTER)
    Pool.objects.update(sequencer="fair_projects")
    move(job, QueueEnd.FRONT, Role.SUBMITTER)
    lines = Transition.objects.filter(job_id=job.pk, reason="moved").order_by("id")
    assert [line.message for line in lines] == [
        "to the end of its band",
        "to the front of its band",
    ]
    Job.objects.update(state=S.SUCCEEDED, finished_at=clock.now())
    with pytest.raises(Conflict, match="has ended"):
        move(job, QueueEnd.END)


def move(
    job: Job, to: QueueEnd | None, role: Role = Role.OPERATOR, *, band: Band | None = None
) -> None:
    move_job(job_id=job.pk, to=to, band=band, role=role, actor="olga", now=clock.now())


def test_job_in_another_band_is_placed_as_if_submitted_there(loop: Loop) -> None:
    first, second = loop.submit(), loop.submit(groups=two_groups())
    third = loop.submit(band="batch")
    move(second, None, band=Band.BATCH)
    move(third, None, band=Band.PRODUCTION)
    tasks = [task.pk for job in (third, first, second) for task in loop.tasks(job)]
    assert [place_of(task).position for task in tasks] == [1, 2, 3, 4]
    loop.cell(cpu=3000)
    loop.place()
    found = Task.objects.filter(state=S.ASSIGNED).values_list("pk", flat=True)
    assert sorted(found) == sorted(tasks[:3])
    shapes = set(Task.objects.filter(job=second).values_list("shape_id", flat=True))
    assert set(Shape.objects.filter(pk__in=shapes).values_list("band", flat=True)) == {Band.BATCH}
    assert check_all() == []


def test_band_above_the_highest_one_needs_an_operator(loop: Loop) -> None:
    Quota.objects.create(user=loop.owner, highest_band="interactive")
    job = loop.submit(band="batch")
    with pytest.raises(NotPermitted, match="interactive is the highest band of user owner"):
        move(job, None, Role.MANAGER, band=Band.PRODUCTION)
    move(job, None, Role.SUBMITTER, band=Band.INTERACTIVE)
    move(job, QueueEnd.FRONT, Role.OPERATOR, band=Band.PRODUCTION)
    moved = Job.objects.get(pk=job.pk)
    assert (moved.band, moved.queue_rank) == (Band.PRODUCTION, -1)
    line = Transition.objects.filter(job_id=job.pk, reason="moved").latest("id")
    assert line.message == "to band production and to the front of its band"


def two_groups() -> list[dict[str, object]]:
    group = {"image": "x", "command": ["true"], "resources": {"cpu": 1, "memory": "64Mi"}}
    return [{"name": name, **group} for name in ("a", "b")]
