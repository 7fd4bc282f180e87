"""S0.8: a task that is not placed in time is UNSCHEDULABLE, its job too, the rest is killed."""

from datetime import timedelta

from controlplane.contract.states import TaskState as S
from controlplane.models import Pool
from tests.scenarios.stage import BEGIN, Stage


def test_task_not_placed_in_time_ends_its_job_and_other_tasks(stage: Stage) -> None:
    cell = stage.cell(cpu=100)
    job = stage.submit_small(replicas=3, scheduling_timeout_seconds=60)
    stage.place()
    (attempt,) = stage.newest(job)
    stage.start(attempt)
    stage.wait(59)
    stage.place()
    stage.converge()
    assert sorted(stage.states(job)) == ["PENDING", "PENDING", "RUNNING"]
    stage.wait(2)
    stage.place()
    stage.settle()
    assert stage.states(job) == ["KILLED", "UNSCHEDULABLE", "UNSCHEDULABLE"]
    assert stage.state(job) == "UNSCHEDULABLE"
    assert stage.job(job).failure_reason == "2 tasks could not be placed"
    assert cell.stop_orders() == [str(attempt.uid)]
    stage.check()


def test_unschedulable_task_is_not_retried(stage: Stage) -> None:
    job = stage.submit_small(scheduling_timeout_seconds=10, retries={"failure": 5})
    stage.wait(11)
    stage.place()
    stage.converge()
    stage.cell()
    stage.wait(600)
    stage.place()
    assert (stage.states(job), stage.attempts(job)) == (["UNSCHEDULABLE"], [])
    assert stage.history(job) == [("UNSCHEDULABLE", "scheduling_deadline", "convergence")]
    assert stage.task(job).failure_reason == "not started within time limit"


def test_deadline_applies_only_after_a_pass_since_it_expired(stage: Stage) -> None:
    job = stage.submit_small(scheduling_timeout_seconds=10)
    stage.place()
    stage.wait(11)
    stage.converge()
    assert stage.states(job) == ["PENDING"]
    stage.cell()
    stage.place()
    assert stage.states(job) == ["ASSIGNED"]


def test_scheduling_deadline_does_not_apply_after_a_first_run(stage: Stage) -> None:
    cell = stage.cell()
    job, attempt = stage.running(scheduling_timeout_seconds=60)
    stage.vanish(attempt)
    stage.lose(cell)
    stage.wait(600, cell)
    stage.place()
    stage.converge()
    assert (stage.states(job), stage.state(job)) == (["PENDING"], "RUNNING")


def test_scheduling_deadline_applies_to_a_placed_task_that_never_ran(stage: Stage) -> None:
    cell = stage.cell()
    job, attempt = stage.placed(scheduling_timeout_seconds=60)
    stage.refuse(attempt)
    stage.lose(cell)
    stage.place()
    stage.converge()
    assert stage.state(job) == "UNSCHEDULABLE"


def test_scheduling_deadline_counts_from_start_after(stage: Stage) -> None:
    start = BEGIN + timedelta(seconds=100)
    job = stage.submit_small(scheduling_timeout_seconds=60, start_after=start.isoformat())
    group = job.groups.get()
    assert (group.startable_at, group.deadline_at) == (start, start + timedelta(seconds=60))
    stage.wait(99)
    stage.place()
    stage.converge()
    assert stage.state(job) == "PENDING"
    stage.wait(60)
    stage.place()
    stage.converge()
    assert stage.state(job) == "PENDING"
    stage.wait(2)
    stage.place()
    stage.converge()
    assert stage.state(job) == "UNSCHEDULABLE"


def test_deadline_of_a_dependent_counts_from_its_met_dependency(stage: Stage) -> None:
    stage.cell()
    first, attempt = stage.running()
    after_job = stage.submit_small(
        depends_on=[{"job": first.pk}], scheduling_timeout_seconds=60, name="after-job"
    )
    groups = [stage.group("a"), stage.group("b", depends_on=[{"group": "a"}])]
    after_group = stage.submit(groups=groups, scheduling_timeout_seconds=60)
    stage.place()
    stage.start(*stage.newest(after_group))
    stage.wait(300)
    stage.succeed(attempt, *stage.newest(after_group))
    stage.converge()
    met = BEGIN + timedelta(seconds=300)
    for job, name in ((after_job, "main"), (after_group, "b")):
        deadline = job.groups.get(name=name).deadline_at
        assert deadline is not None
        assert timedelta(0) < deadline - met - timedelta(seconds=60) < timedelta(seconds=1)
    stage.place()
    assert stage.states(after_job) == ["ASSIGNED"]


def test_pool_sets_the_default_scheduling_timeout(stage: Stage) -> None:
    Pool.objects.update(pending_timeout_seconds=30)
    job = stage.submit_small()
    own = stage.submit_small(scheduling_timeout_seconds=300)
    stage.wait(31)
    stage.place()
    stage.converge()
    assert (stage.state(job), stage.state(own)) == ("UNSCHEDULABLE", "PENDING")


def test_unreadable_pool_suspends_only_its_own_deadlines(stage: Stage) -> None:
    stage.policy("broken")
    there = stage.submit_small(pool="broken", scheduling_timeout_seconds=10)
    here = stage.submit_small(scheduling_timeout_seconds=10)
    Pool.objects.filter(name="broken").update(tokens=["no mapping"])
    for _ in range(2):
        stage.wait(11)
        stage.place()
        stage.converge()
        assert (stage.state(there), stage.state(here)) == ("PENDING", "UNSCHEDULABLE")
    stage.policy("broken", tokens={})
    stage.place()
    stage.converge()
    assert stage.state(there) == "UNSCHEDULABLE"


def test_task_without_a_deadline_stays_pending(stage: Stage) -> None:
    job = stage.submit_small()
    stage.wait(30 * 24 * 3600)
    stage.place()
    stage.converge()
    assert stage.states(job) == ["PENDING"]


def test_unschedulable_takes_precedence_over_killed_and_running(stage: Stage) -> None:
    stage.cell(cpu=100)
    job = stage.submit_small(replicas=2, scheduling_timeout_seconds=10)
    stage.place()
    stage.start(*stage.newest(job))
    stage.wait(11)
    stage.place()
    stage.converge()
    assert stage.job(job).ending_as == S.UNSCHEDULABLE
    assert (stage.states(job), stage.state(job)) == (["KILLED", "UNSCHEDULABLE"], "UNSCHEDULABLE")
