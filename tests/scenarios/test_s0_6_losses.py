"""S0.6: the death of a cell reaches its tasks; a gang whose member failed for good ends whole."""

from controlplane import clock
from controlplane.commands.jobs.cancel import cancel_job
from controlplane.contract.states import TaskState as S
from controlplane.models import Attempt, Cell
from tests.scenarios.stage import Stage


def test_cell_loss_ends_every_attempt_on_it_and_no_other(stage: Stage) -> None:
    dying = stage.cell("dying")
    job = stage.submit_small(replicas=3)
    stage.place()
    stage.start(stage.newest(job)[0])
    stage.build(stage.newest(job)[1])
    stage.cell("living")
    other = stage.submit(resources={"cpu": 4, "memory": "64Mi"})
    stage.place()
    stage.start(*stage.newest(other))
    stage.lose(dying)
    assert stage.states(job) == ["PENDING"] * 3
    assert {S(row.state).name for row in stage.attempts(job)} == {"WORKER_FAILED"}
    assert {row.reason for row in stage.attempts(job)} == {"cell_lost"}
    assert stage.states(other) == ["RUNNING"]
    assert [task.preemption_count for task in stage.tasks(job)] == [1, 1, 1]
    stage.check()


def test_lost_task_without_retries_ends_as_worker_failed(stage: Stage) -> None:
    cell = stage.cell()
    job, _ = stage.running(retries={"preemption": 0})
    stage.lose(cell)
    assert (stage.state(job), stage.states(job)) == ("WORKER_FAILED", ["WORKER_FAILED"])
    assert stage.task(job).failure_reason == "cell disappeared before completion"
    assert stage.job(job).settled_at is not None


def test_cell_loss_releases_a_stopping_attempt(stage: Stage) -> None:
    cell = stage.cell()
    job, _ = stage.running()
    cancel_job(job_id=job.pk, reason="", force=False, actor="me", now=clock.now())
    assert stage.job(job).settled_at is None
    stage.lose(cell)
    assert stage.last(job).release_kind == "cell_lost"
    assert (stage.state(job), stage.states(job)) == ("KILLED", ["KILLED"])
    assert stage.job(job).settled_at is not None
    assert stage.counters(job) == (0, 0, 0)


def test_a_cell_is_lost_only_after_its_lease_and_three_ticks_of_silence(stage: Stage) -> None:
    cell = stage.cell()
    job, _ = stage.running()
    stage.wait(37, cell)
    for _ in range(4):
        stage.converge()
    assert Cell.objects.get().state == "READY"
    stage.wait(1, cell)
    stage.converge()
    assert (Cell.objects.get().state, stage.states(job)) == ("LOST", ["PENDING"])


def test_cell_that_reports_in_time_keeps_its_tasks(stage: Stage) -> None:
    cell = stage.cell()
    job, _ = stage.running()
    for _ in range(8):
        stage.wait(12, cell)
        stage.converge()
        stage.wait(3)
        stage.converge()
    assert (Cell.objects.get().state, stage.states(job)) == ("READY", ["RUNNING"])


def test_exclusive_attempt_is_released_ten_seconds_after_cell_loss(
    stage: Stage,
) -> None:
    cell = stage.cell()
    job, _ = stage.running(exclusive=True)
    stage.cell("other")
    while Cell.objects.get(name=cell.name).state != "LOST":
        stage.wait(15, cell)
        stage.converge()
    assert stage.states(job) == ["PENDING"]
    assert stage.last(job).released_at is None
    stage.wait(9)
    stage.converge()
    stage.place()
    assert len(stage.attempts(job)) == 1
    stage.wait(1.5)
    stage.converge()
    stage.place()
    first, second = stage.attempts(job)
    assert (first.release_kind, stage.fake_cell_of(second).name) == ("cell_lost", "other")


def test_strictly_exclusive_attempt_is_not_released_by_cell_loss(stage: Stage) -> None:
    cell = stage.cell()
    job, attempt = stage.running(exclusive="strict")
    stage.lose(cell)
    stage.wait(3600, cell)
    stage.converge()
    assert (stage.states(job), stage.last(job).released_at) == (["PENDING"], None)
    stage.check()
    assert Attempt.objects.get(pk=attempt.pk).state == S.WORKER_FAILED


def test_finally_failed_member_ends_its_siblings_as_worker_failed(stage: Stage) -> None:
    cell = stage.cell()
    job = stage.submit_small(coscheduled=True, replicas=3)
    stage.place()
    first, *others = stage.newest(job)
    stage.start(first, others[0])
    stage.fail(first)
    stage.settle()
    assert stage.states(job) == ["FAILED", "WORKER_FAILED", "WORKER_FAILED"]
    assert {row.reason for row in stage.newest(job)[1:]} == {"gang_sibling_failed"}
    assert [row.released_at for row in stage.newest(job)[1:]] == [None, None]
    assert set(cell.stop_orders()) == {str(row.uid) for row in others}
    stage.check()


def test_gang_end_exhausts_the_preemption_budget_of_siblings(stage: Stage) -> None:
    stage.cell()
    job = stage.submit_small(coscheduled=True, replicas=2, retries={"preemption": 7})
    stage.place()
    first, second = stage.newest(job)
    stage.vanish(second)
    stage.settle()
    stage.confirm(first)
    stage.place()
    first, second = stage.newest(job)
    stage.fail(first)
    stage.settle()
    sibling = stage.tasks(job)[1]
    assert (sibling.state, sibling.preemption_count) == (S.WORKER_FAILED, 8)
    assert [(row.charged, row.charge) for row in sibling.attempts.order_by("number")] == [
        ("preemption", 1),
        ("preemption", 7),
    ]


def test_broken_gang_ends_its_job_as_worker_failed(stage: Stage) -> None:
    """The one FAILED task is tolerated: what decides is that its siblings are WORKER_FAILED."""
    stage.cell()
    job = stage.submit_small(coscheduled=True, replicas=3, max_task_failures=1)
    stage.place()
    stage.fail(stage.newest(job)[0])
    assert stage.job(job).ending_as == S.WORKER_FAILED
    stage.settle()
    assert stage.states(job) == ["FAILED", "WORKER_FAILED", "WORKER_FAILED"]
    assert stage.state(job) == "WORKER_FAILED"


def test_gang_continues_without_a_failed_member_above_its_minimum(
    stage: Stage,
) -> None:
    stage.cell()
    job = stage.submit_small(coscheduled=True, replicas=3, min_available=2)
    stage.place()
    first, second, third = stage.newest(job)
    stage.fail(first)
    stage.settle()
    assert stage.states(job) == ["FAILED", "ASSIGNED", "ASSIGNED"]
    stage.succeed(second, third)
    assert stage.state(job) == "SUCCEEDED"


def test_lost_member_requeues_the_gang_without_charging_siblings(
    stage: Stage,
) -> None:
    stage.cell()
    job = stage.submit_small(coscheduled=True, replicas=3)
    stage.place()
    first, *others = stage.newest(job)
    stage.start(first, *others)
    stage.vanish(first)
    stage.settle()
    assert stage.states(job) == ["PENDING"] * 3
    assert [task.preemption_count for task in stage.tasks(job)] == [1, 0, 0]
    requeued = stage.newest(job)[1:]
    assert {(S(row.state).name, row.reason, row.released_at) for row in requeued} == {
        ("WORKER_FAILED", "gang_requeued", None)
    }
    stage.place()
    assert stage.states(job) == ["PENDING"] * 3
    stage.confirm(*others)
    stage.place()
    assert stage.states(job) == ["ASSIGNED"] * 3
    stage.check()


def test_retried_member_requeues_the_gang(stage: Stage) -> None:
    stage.cell()
    job = stage.submit_small(coscheduled=True, replicas=2, retries={"failure": 1})
    stage.place()
    stage.fail(stage.newest(job)[0])
    stage.settle()
    assert stage.states(job) == ["PENDING", "PENDING"]
    assert [task.failure_count for task in stage.tasks(job)] == [1, 0]


def test_cell_loss_ends_a_gang_whose_member_has_no_retries_left(stage: Stage) -> None:
    dying = stage.cell("dying", cpu=100)
    stage.cell("living", cpu=100)
    job = stage.submit_small(coscheduled=True, replicas=2, retries={"preemption": 0})
    stage.place()
    stage.lose(dying)
    stage.settle()
    assert stage.states(job) == ["WORKER_FAILED", "WORKER_FAILED"]
    assert {row.reason for row in stage.newest(job)} == {"cell_lost", "gang_sibling_failed"}
    assert stage.state(job) == "WORKER_FAILED"


def test_tasks_outside_a_gang_do_not_end_each_other(stage: Stage) -> None:
    stage.cell()
    job = stage.submit_small(replicas=3, max_task_failures=1)
    stage.place()
    first, second, _ = stage.newest(job)
    stage.fail(first)
    stage.vanish(second)
    stage.settle()
    assert stage.states(job) == ["FAILED", "PENDING", "ASSIGNED"]
