"""Holds of jobs and projects: nothing waiting is placed, and the time in a hold does not count."""

from datetime import timedelta
from typing import Any

import pytest

from controlplane import clock
from controlplane.commands.jobs.dry_run import dry_run
from controlplane.commands.jobs.holds import hold_job, hold_project, release_job, release_project
from controlplane.commands.placement import allocate
from controlplane.commands.retention.deletion import delete_job
from controlplane.commands.retention.purge import purge_deleted
from controlplane.commands.state.transactions import for_each_batch
from controlplane.domain.errors import Conflict, NotFound, NotPermitted
from controlplane.domain.integrity.doctor import judge_tasks
from controlplane.domain.roles import Role
from controlplane.models import Hold, Job, Pool, Transition
from controlplane.queries.convergence.doctor import load_open_tasks
from controlplane.queries.policy import load_policy
from controlplane.queries.views.explain import explain_task
from controlplane.queries.views.jobs import get_job
from controlplane.queries.views.queue_position import find_queue_place
from controlplane.spec import parse_job
from tests.scenarios.conftest import loop as loop
from tests.scenarios.conftest import stage as stage
from tests.scenarios.stage import SMALL, Stage


def hold(job: Job, reason: str = "waits for data", role: Role = Role.SUBMITTER) -> None:
    hold_job(job_id=job.pk, reason=reason, role=role, actor=f"a-{role}", now=clock.now())


def release(job: Job, role: Role = Role.SUBMITTER) -> None:
    release_job(job_id=job.pk, role=role, actor=f"a-{role}", now=clock.now())


def hold_all(job: Job, role: Role = Role.MANAGER) -> None:
    reason, project = "the budget is spent", job.project_id
    hold_project(project_id=project, reason=reason, role=role, actor="mara", now=clock.now())


def release_all(job: Job, role: Role = Role.MANAGER) -> None:
    release_project(project_id=job.project_id, role=role, actor="mara", now=clock.now())


def test_waiting_tasks_of_a_held_job_are_not_placed_and_running_ones_continue(
    stage: Stage,
) -> None:
    cell = stage.cell(cpu=100)
    job = stage.submit_small(replicas=2)
    stage.place()
    (attempt,) = stage.newest(job)
    stage.start(attempt)
    hold(job)
    other = stage.submit_small(name="other")
    stage.wait(60)
    stage.settle()
    assert sorted(stage.states(job)) == ["PENDING", "RUNNING"]
    assert cell.stop_orders() == []
    stage.succeed(attempt)
    stage.place()
    # The job behind it is served meanwhile.
    assert stage.states(other) == ["ASSIGNED"]
    stage.succeed(stage.last(other))
    stage.place()
    assert sorted(stage.states(job)) == ["PENDING", "SUCCEEDED"]
    release(job)
    stage.place()
    assert sorted(stage.states(job)) == ["ASSIGNED", "SUCCEEDED"]
    stage.check()


def test_held_gang_does_not_start_before_its_release(stage: Stage) -> None:
    stage.cell()
    gang = stage.submit_small(coscheduled=True, replicas=3)
    hold(gang)
    stage.place()
    assert stage.attempts(gang) == []
    release(gang)
    stage.place()
    assert stage.states(gang) == ["ASSIGNED"] * 3
    stage.check()


def test_requeued_task_of_a_held_job_waits_for_the_release(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.running(retries={"failure": 1})
    hold(job)
    stage.fail(attempt)
    stage.wait(300)
    stage.place()
    assert stage.states(job) == ["PENDING"]
    release(job)
    stage.place()
    assert stage.states(job) == ["ASSIGNED"]


def test_held_project_keeps_all_its_jobs_waiting_also_later_ones(stage: Stage) -> None:
    stage.cell()
    first = stage.submit_small()
    hold_all(first)
    later = stage.submit_small()
    stage.place()
    assert stage.states(first) + stage.states(later) == ["PENDING", "PENDING"]
    hold(later)
    release_all(first)
    stage.place()
    assert stage.states(first) + stage.states(later) == ["ASSIGNED", "PENDING"]
    release(later)
    stage.place()
    assert stage.states(later) == ["ASSIGNED"]
    stage.check()


def test_plan_made_before_a_hold_is_not_carried_out(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hold is committed between the decision of a pass and its placements."""
    stage.cell()
    job, of_project, free = (stage.submit_small(name=name) for name in ("a", "b", "c"))

    def held_meanwhile(*args: Any, **options: Any) -> Any:
        if not Hold.objects.exists():
            hold(job)
        return for_each_batch(*args, **options)

    monkeypatch.setattr(allocate, "for_each_batch", held_meanwhile)
    stage.place()
    assert stage.states(job) + stage.states(free) == ["PENDING", "ASSIGNED"]
    release(job)
    Hold.objects.all().delete()
    late = stage.submit_small(name="late")

    def project_held_meanwhile(*args: Any, **options: Any) -> Any:
        hold_all(late)
        return for_each_batch(*args, **options)

    monkeypatch.setattr(allocate, "for_each_batch", project_held_meanwhile)
    stage.place()
    assert stage.states(late) + stage.states(job) == ["PENDING", "PENDING"]
    assert stage.states(of_project) == ["ASSIGNED"]


@pytest.mark.parametrize("of_pool", [False, True])
def test_time_in_a_hold_does_not_count_for_the_scheduling_timeout(
    stage: Stage, of_pool: bool
) -> None:
    Pool.objects.update(pending_timeout_seconds=60 if of_pool else None)
    job = stage.submit_small(**({} if of_pool else {"scheduling_timeout_seconds": 60}))
    stage.wait(40)
    hold(job)
    stage.wait(1000)
    stage.place()
    stage.converge()
    assert stage.states(job) == ["PENDING"]
    release(job)
    stage.wait(19)
    stage.place()
    stage.converge()
    assert stage.states(job) == ["PENDING"]
    stage.wait(2)
    stage.place()
    stage.converge()
    assert stage.states(job) == ["UNSCHEDULABLE"]


def test_holds_of_a_job_and_its_project_that_overlap_count_once(stage: Stage) -> None:
    job = stage.submit_small(scheduling_timeout_seconds=60)
    hold(job)
    stage.wait(100)
    hold_all(job)
    stage.wait(100)
    release(job)
    stage.wait(100)
    stage.place()
    stage.converge()
    assert stage.states(job) == ["PENDING"]
    release_all(job)
    stage.wait(59)
    stage.place()
    stage.converge()
    assert stage.states(job) == ["PENDING"]
    stage.wait(2)
    stage.place()
    stage.converge()
    assert stage.states(job) == ["UNSCHEDULABLE"]


def test_hold_before_a_task_may_start_does_not_extend_its_deadline(stage: Stage) -> None:
    start = clock.now() + timedelta(seconds=100)
    job = stage.submit_small(scheduling_timeout_seconds=60, start_after=start.isoformat())
    hold(job)
    stage.wait(110)  # ten seconds of the hold count
    release(job)
    stage.wait(59)
    stage.place()
    stage.converge()
    assert stage.states(job) == ["PENDING"]
    stage.wait(2)
    stage.place()
    stage.converge()
    assert stage.states(job) == ["UNSCHEDULABLE"]


def test_reservation_of_a_held_task_is_given_up(stage: Stage) -> None:
    Pool.objects.update(starvation_seconds=30, preemption=False)
    stage.cell(cpu=1000)
    _, attempt = stage.running(name="small")
    large = stage.submit(resources={"cpu": 1, "memory": "64Mi"})
    stage.wait(31)
    stage.place()
    assert stage.task(large).nominated_cell_id is not None
    hold(large)
    other = stage.submit(resources={"cpu": 0.5, "memory": "64Mi"}, name="other")
    stage.place()
    assert stage.task(large).nominated_cell_id is None
    assert stage.states(other) == ["ASSIGNED"]
    assert attempt.cell_id == stage.last(other).cell_id


def test_hold_is_the_first_reason_with_name_reason_and_time(stage: Stage) -> None:
    stage.cell()
    job = stage.submit(resources={"cpu": 100, "memory": "64Mi"}, allow_unsatisfiable=True)
    stage.place()
    hold(job, "waits for data")
    since = Hold.objects.get().held_at.isoformat(timespec="milliseconds")
    reason = stage.why(job)
    text = f"held by a-submitter: waits for data, since {since}"
    assert (reason["code"], reason["text"]) == ("held", text)
    explained = explain_task(stage.task(job).pk, now=stage.now())
    assert [item["code"] for item in explained["also"]] == ["insufficient_resources"]
    assert explained["queue"] is None
    hold_all(job)
    codes = explain_task(stage.task(job).pk, now=stage.now())
    assert codes["also"][0]["text"].startswith("its project default/default is held by mara: the")
    shown = get_job(job.pk)["holds"]
    assert [(item["by"], item["project"]) for item in shown] == [
        ("a-submitter", None),
        ("mara", "default/default"),
    ]


def test_held_job_is_not_counted_in_the_queue_of_others(stage: Stage) -> None:
    first, second = stage.submit_small(), stage.submit_small()
    hold(first)
    place = find_queue_place(stage.task(second).pk, now=stage.now())
    assert place is not None
    assert (place.position, place.of) == (1, 1)


def test_doctor_lists_a_held_task_without_a_deadline(stage: Stage) -> None:
    job = stage.submit_small(scheduling_timeout_seconds=60)
    hold(job)
    stage.wait(1000)
    [task] = load_open_tasks(load_policy())
    assert task.due_at is None
    [entry] = judge_tasks([task], now=stage.now(), interval=15)
    assert (entry.what, entry.needs_person) == ("PENDING, its job or project held", False)


def test_dry_run_shows_the_hold_of_the_project(stage: Stage) -> None:
    stage.cell()
    job = stage.submit_small()
    body = {"name": "asked", **SMALL}
    assert dry_run_of(stage, body).groups[0].waiting == 0
    hold_all(job)
    found = dry_run_of(stage, body).groups[0]
    assert found.waiting == 1
    assert found.reason is not None
    assert found.reason["text"].startswith("its project default/default is held by mara")


def dry_run_of(stage: Stage, body: dict[str, Any]) -> Any:
    return dry_run(spec=parse_job(body), body=body, owner=stage.owner, now=stage.now())


LADDER = (Role.SUBMITTER, Role.MANAGER, Role.OPERATOR)


@pytest.mark.parametrize("holder", LADDER)
@pytest.mark.parametrize("other", LADDER)
def test_hold_is_changed_and_released_by_its_role_or_a_higher_one(
    stage: Stage, holder: Role, other: Role
) -> None:
    job = stage.submit_small()
    hold(job, role=holder)
    since = Hold.objects.get().held_at
    if other.includes(holder):
        hold(job, "another reason", role=other)
        found = Hold.objects.get()
        assert (found.held_by, found.reason, found.held_at) == (
            f"a-{other}",
            "another reason",
            since,
        )
        release(job, role=other)
        assert not Job.objects.get(pk=job.pk).is_held
        return
    with pytest.raises(NotPermitted, match=f"only the role {holder}"):
        hold(job, "another reason", role=other)
    with pytest.raises(NotPermitted, match=f"only the role {holder}"):
        release(job, role=other)
    assert Job.objects.get(pk=job.pk).is_held


def test_manager_cannot_release_a_project_held_by_an_operator(stage: Stage) -> None:
    job = stage.submit_small()
    hold_all(job, Role.OPERATOR)
    with pytest.raises(NotPermitted, match="only the role operator"):
        release_all(job)
    release_all(job, Role.OPERATOR)
    with pytest.raises(Conflict, match="project default/default is not held"):
        release_all(job)


def test_hold_and_release_are_in_the_history_of_the_job(stage: Stage) -> None:
    job = stage.submit_small()
    hold(job)
    release(job)
    found = (
        Transition.objects.filter(job_id=job.pk)
        .order_by("id")
        .values_list("reason", "message", "actor")
    )
    assert list(found)[1:] == [
        ("held", "waits for data", "a-submitter"),
        ("hold_released", "", "a-submitter"),
    ]
    stage.check()


def test_ended_or_missing_job_cannot_be_held_and_a_free_one_not_released(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.running()
    with pytest.raises(Conflict, match=f"job {job.pk} is not held"):
        release(job)
    with pytest.raises(Conflict, match="needs a reason"):
        hold(job, "  ")
    stage.succeed(attempt)
    with pytest.raises(Conflict, match=f"job {job.pk} has ended"):
        hold(job)
    job.pk += 1000
    with pytest.raises(NotFound):
        hold(job)


def test_job_that_ends_while_held_is_shown_without_a_hold_and_deleted(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.running(replicas=1)
    hold(job)
    stage.succeed(attempt)
    assert stage.state(job) == "SUCCEEDED"
    assert get_job(job.pk)["holds"] == []
    stage.settle()
    delete_job(job_id=job.pk, actor="owner", now=stage.now())
    purge_deleted(lambda: False)
    assert not Job.objects.filter(pk=job.pk).exists()
    assert not Hold.objects.exists()
