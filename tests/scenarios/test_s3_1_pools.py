"""S3.1: each state has its handler, as Backend.AI's coordinator has them; each pool its policy."""

import pytest

from controlplane.commands.jobs.cancel import cancel_job
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import Phase
from controlplane.contract.states import TaskState as S
from controlplane.domain.jobs.submission import JobsRefused
from controlplane.models import Job, Pool
from controlplane.spec import InvalidSpec
from tests.scenarios.stage import Stage

LARGE = {"cpu": 0.5, "memory": "64Mi"}


def cancel(stage: Stage, job: Job) -> None:
    cancel_job(job_id=job.pk, reason="enough", force=False, actor="owner", now=stage.now())


def test_scheduled_is_assigned_preparing_and_pulling_are_phases_of_building(stage: Stage) -> None:
    cell = stage.cell()
    job, attempt = stage.placed()
    assert stage.states(job) == ["ASSIGNED"]
    for phase in (Phase.PULLING, Phase.PREPARING, Phase.CREATING):
        stage.build(attempt, phase=phase)
        assert (stage.states(job), stage.last(job).phase) == (["BUILDING"], phase)
    stage.start(attempt)
    assert stage.states(job) == ["RUNNING"]
    cell.report(AttemptReport(str(attempt.uid), 0, S.SUCCEEDED, exit_code=0))
    assert (stage.states(job), stage.last(job).released_at) == (["SUCCEEDED"], None)


def test_terminating_is_ended_unreleased_and_terminated_is_released(stage: Stage) -> None:
    stage.cell()
    job, attempt = stage.running()
    cancel(stage, job)
    stage.settle()
    assert (stage.states(job), stage.last(job).released_at) == (["KILLED"], None)
    assert stage.job(job).settled_at is None
    stage.confirm(attempt)
    assert stage.last(job).released_at is not None
    assert stage.job(job).settled_at is not None


def test_cancelled_is_killed_before_any_attempt(stage: Stage) -> None:
    job = stage.submit_small()
    cancel(stage, job)
    stage.settle()
    assert (stage.states(job), stage.attempts(job)) == (["KILLED"], [])


def test_job_stays_in_its_pool_when_another_has_room(stage: Stage) -> None:
    stage.cell("cell-1", cpu=100)
    stage.cell_of("second", "cell-2")
    first = stage.submit_small(replicas=2)
    second = stage.submit_small(replicas=2, pool="second")
    stage.place()
    assert stage.cells(first) == ["cell-1"]
    assert stage.cells(second) == ["cell-2", "cell-2"]


def test_each_pool_has_its_own_sequencer(stage: Stage) -> None:
    stage.policy("lifo", sequencer="lifo")
    stage.cell("cell-1", cpu=100)
    stage.cell_of("lifo", "cell-2", cpu=100)
    jobs = {pool: [stage.submit_small(pool=pool) for _ in "ab"] for pool in ("default", "lifo")}
    stage.place()
    assert [stage.states(job) for job in jobs["default"]] == [["ASSIGNED"], ["PENDING"]]
    assert [stage.states(job) for job in jobs["lifo"]] == [["PENDING"], ["ASSIGNED"]]


@pytest.mark.parametrize(("strict", "state"), [(True, "PENDING"), (False, "ASSIGNED")])
def test_strict_pool_stops_at_the_first_job_that_does_not_fit(
    stage: Stage, strict: bool, state: str
) -> None:
    stage.policy(strict_fifo=strict)
    stage.cell(cpu=600)
    filler = stage.submit_small(replicas=2)
    stage.place()
    large = stage.submit(resources=LARGE)
    small = stage.submit_small()
    stage.place()
    assert (stage.states(filler), stage.states(large)) == (["ASSIGNED"] * 2, ["PENDING"])
    assert stage.states(small) == [state]
    if strict:
        assert stage.why(small)["code"] == "queue_position"


def test_changed_policy_applies_at_the_next_pass(stage: Stage) -> None:
    stage.cell(cpu=100)
    jobs = [stage.submit_small() for _ in range(3)]
    stage.place()
    stage.policy(sequencer="lifo")
    stage.succeed(stage.last(jobs[0]))
    stage.place()
    assert [stage.states(job) for job in jobs] == [["SUCCEEDED"], ["PENDING"], ["ASSIGNED"]]


def test_a_plugin_that_is_not_installed_is_refused_when_the_pool_is_saved(stage: Stage) -> None:
    for fields in ({"sequencer": "astrology"}, {"selector": "x"}, {"validators": ["mood"]}):
        with pytest.raises(InvalidSpec, match="not installed"):
            stage.policy(**fields)
    assert Pool.objects.get().sequencer == "fifo"


def test_job_for_an_unknown_pool_is_refused(stage: Stage) -> None:
    with pytest.raises(JobsRefused, match="nowhere"):
        stage.submit_small(pool="nowhere")
    assert not Job.objects.exists()
