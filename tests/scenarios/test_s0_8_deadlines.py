"""S0.8: a task that is not placed in time is UNSCHEDULABLE, its job too, the rest is killed."""

from datetime import timedelta

from controlplane.contract.states import TaskState as S
from controlplane.models import Pool
from tests.scenarios.stage import BEGIN, Stage


def test_a_task_that_finds_no_place_in_time_ends_its_job_and_the_rest(stage: Stage) -> None:
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


def test_it_is_never_tried_again(stage: Stage) -> None:
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


def test_nobody_runs_out_of_time_before_a_pass_has_looked_since(stage: Stage) -> None:
    job = stage.submit_small(scheduling_timeout_seconds=10)
    stage.place()
    stage.wait(11)
    stage.converge()
    assert stage.states(job) == ["PENDING"]
    stage.cell()
    stage.place()
    assert stage.states(job) == ["ASSIGNED"]


def test_a_task_that_ran_before_has_no_deadline_any_more(stage: Stage) -> None:
    cell = stage.cell()
    job, attempt = stage.running(scheduling_timeout_seconds=60)
    stage.vanish(attempt)
    stage.lose(cell)
    stage.wait(600, cell)
    stage.place()
    stage.converge()
    assert (stage.states(job), stage.state(job)) == (["PENDING"], "RUNNING")


def test_a_task_that_was_placed_and_never_ran_still_has_it(stage: Stage) -> None:
    cell = stage.cell()
    job, attempt = stage.placed(scheduling_timeout_seconds=60)
    stage.refuse(attempt)
    stage.lose(cell)
    stage.place()
    stage.converge()
    assert stage.state(job) == "UNSCHEDULABLE"


def test_the_time_counts_from_when_the_job_may_start(stage: Stage) -> None:
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


def test_the_time_of_a_dependant_counts_from_when_it_need_wait_no_more(stage: Stage) -> None:
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


def test_a_pool_may_set_the_time_for_jobs_that_do_not(stage: Stage) -> None:
    Pool.objects.update(pending_timeout_seconds=30)
    job = stage.submit_small()
    own = stage.submit_small(scheduling_timeout_seconds=300)
    stage.wait(31)
    stage.place()
    stage.converge()
    assert (stage.state(job), stage.state(own)) == ("UNSCHEDULABLE", "PENDING")


def test_a_pool_that_cannot_be_looked_at_stops_its_own_deadlines_alone(stage: Stage) -> None:
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


def test_without_a_deadline_a_task_waits_for_ever(stage: Stage) -> None:
    job = stage.submit_small()
    stage.wait(30 * 24 * 3600)
    stage.place()
    stage.converge()
    assert stage.states(job) == ["PENDING"]


def test_unschedulable_comes_before_killed_and_running(stage: Stage) -> None:
    stage.cell(cpu=100)
    job = stage.submit_small(replicas=2, scheduling_timeout_seconds=10)
    stage.place()
    stage.start(*stage.newest(job))
    stage.wait(11)
    stage.place()
    stage.converge()
    assert stage.job(job).ending_as == S.UNSCHEDULABLE
    assert (stage.states(job), stage.state(job)) == (["KILLED", "UNSCHEDULABLE"], "UNSCHEDULABLE")
