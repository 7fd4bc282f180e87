"""S3.6: pools bound how long work waits or is prepared, and history records each case."""

import pytest

from controlplane.commands.retention.deletion import delete_job
from controlplane.contract.states import Phase
from controlplane.models import Alert, Attempt, Cell, Job, Pool, Task, Transition
from tests.scenarios.stage import Stage


def reasons(stage: Stage, job: Job) -> list[str]:
    return [reason for _, reason, _ in stage.history(job)]


def overdue(stage: Stage, seconds: float) -> None:
    stage.wait(seconds)
    stage.place()
    stage.converge()


def test_pending_timeout_is_set_per_pool(stage: Stage) -> None:
    stage.policy("hasty", pending_timeout_seconds=30)
    patient, hasty = stage.submit_small(), stage.submit_small(pool="hasty")
    own = stage.submit_small(pool="hasty", scheduling_timeout_seconds=300)
    overdue(stage, 31)
    ends = [stage.state(job) for job in (patient, hasty, own)]
    assert ends == ["PENDING", "UNSCHEDULABLE", "PENDING"]
    assert reasons(stage, hasty)[-1] == "scheduling_deadline"


def test_changed_pending_timeout_applies_to_waiting_jobs(stage: Stage) -> None:
    before = stage.submit_small()
    own = stage.submit_small(scheduling_timeout_seconds=300)
    overdue(stage, 31)
    assert stage.state(before) == "PENDING"
    stage.policy(pending_timeout_seconds=60)
    overdue(stage, 28)
    assert stage.state(before) == "PENDING"
    overdue(stage, 2)
    assert (stage.state(before), stage.state(own)) == ("UNSCHEDULABLE", "PENDING")


def test_raised_or_removed_pending_timeout_ends_no_job(stage: Stage) -> None:
    stage.policy(pending_timeout_seconds=30)
    job = stage.submit_small()
    own = stage.submit_small(scheduling_timeout_seconds=20)
    stage.wait(29)
    stage.policy(pending_timeout_seconds=60)
    overdue(stage, 2)
    assert (stage.state(job), stage.state(own)) == ("PENDING", "UNSCHEDULABLE")
    stage.policy(pending_timeout_seconds=None)
    overdue(stage, 100)
    assert stage.state(job) == "PENDING"
    stage.policy(pending_timeout_seconds=120)
    overdue(stage, 1)
    assert stage.state(job) == "UNSCHEDULABLE"


def test_changed_pending_timeout_counts_from_the_startable_time(stage: Stage) -> None:
    stage.cell()
    large = {"resources": {"cpu": 64, "memory": "64Mi"}, "depends_on": [{"group": "a"}]}
    groups = [stage.group("a"), {**stage.group("b"), **large}]
    job = stage.submit(groups=groups, allow_unsatisfiable=True)
    stage.place()
    stage.start(*stage.newest(job))
    stage.policy(pending_timeout_seconds=30)
    overdue(stage, 100)
    stage.succeed(*stage.newest(job))
    overdue(stage, 29)
    assert stage.states(job) == ["SUCCEEDED", "PENDING"]
    overdue(stage, 2)
    assert stage.states(job) == ["SUCCEEDED", "UNSCHEDULABLE"]


@pytest.mark.parametrize(
    ("phase", "field"),
    [(Phase.PULLING, "pull_timeout_seconds"), (Phase.CREATING, "create_timeout_seconds")],
)
def test_pull_or_creation_timeout_is_a_system_failure(
    stage: Stage, phase: Phase, field: str
) -> None:
    Pool.objects.update(pull_timeout_seconds=500, create_timeout_seconds=500)
    Pool.objects.update(**{field: 100})
    cell = stage.cell()
    job, attempt = stage.placed()
    stage.build(attempt, phase=phase)
    overdue(stage, 99)
    assert stage.states(job) == ["BUILDING"]
    overdue(stage, 2)
    assert (stage.states(job), stage.counters(job)) == (["PENDING"], (0, 0, 1))
    assert reasons(stage, job)[-1] == "build_timeout"
    assert cell.stop_orders() == [str(attempt.uid)]
    # It is tried elsewhere, if there is an elsewhere.
    stage.cell("cell-2")
    stage.confirm(attempt)
    overdue(stage, 60)
    assert stage.cells(job) == ["cell-2"]


def test_unanswered_order_is_requeued_and_recorded(stage: Stage) -> None:
    stage.cell()
    job, _ = stage.placed()
    overdue(stage, 61)
    assert reasons(stage, job)[-1] == "start_expired"
    assert stage.counters(job) == (0, 0, 0)


def test_unconfirmed_stop_quarantines_its_cell_with_an_alert(stage: Stage) -> None:
    stage.cell()
    job, _ = stage.running(timeout_seconds=10, stop_grace_seconds=5)
    overdue(stage, 41)
    assert reasons(stage, job)[-1] == "timeout"
    overdue(stage, 36)
    assert reasons(stage, job)[-1] == "stop_forced"
    overdue(stage, 31)
    assert Cell.objects.get().state == "QUARANTINED"
    [alert] = Alert.objects.exclude(kind="tick_late").filter(cleared_at=None)
    assert (alert.kind, alert.subject) == ("stop_unconfirmed", "cell-1")


def test_cell_loss_is_recorded_in_the_history_of_its_tasks(stage: Stage) -> None:
    cell = stage.cell()
    job, _ = stage.running()
    stage.lose(cell)
    stage.settle()
    assert "cell_lost" in reasons(stage, job)
    assert stage.states(job) == ["PENDING"]


def test_pending_reason_is_updated_by_each_pass(stage: Stage) -> None:
    job = stage.submit_small()
    stage.place()
    assert stage.why(job)["text"] == "the pool has no cell"
    stage.cell(cpu=50)
    stage.place()
    assert (stage.why(job)["code"], stage.why(job)["cell"]) == ("insufficient_resources", "cell-1")
    stage.cell("cell-2", cpu=100)
    stage.place()
    assert stage.states(job) == ["ASSIGNED"]


def test_rows_of_a_deleted_job_are_purged(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.running()
    stage.succeed(attempt)
    delete_job(job_id=job.pk, actor="owner", now=stage.now())
    stage.settle()
    kept = [model.objects.filter(job_id=job.pk) for model in (Task, Attempt, Transition)]
    assert [rows.exists() for rows in kept] == [False, False, False]
