"""S3.3: a plan is carried out against the rows as they are then: never more than there is."""

from typing import Any

from controlplane.commands.jobs.cancel import cancel_job
from controlplane.commands.placement.allocate import PoolLimits, carry_out
from controlplane.domain.placement.model.policy import PoolPolicy
from controlplane.domain.state.effects import PlaceTasks
from controlplane.models import Attempt, Cell, Job, Pool, Project, Quota
from tests.scenarios.stage import SMALL, Stage

RARE = {**SMALL["resources"], "fpga": 1}  # type: ignore[dict-item]


def plan(stage: Stage, *jobs: Job, cell: str = "cell-1") -> int:
    """Carry out a plan of all jobs for that cell; return how many tasks are placed there."""
    groups = [job.groups.get() for job in jobs]
    cell_id = Cell.objects.get(name=cell).pk
    placements = PlaceTasks(
        [job.pk for job in jobs],
        [group.pk for group in groups],
        [group.shape_id for group in groups],
        [cell_id] * len(groups),
        [group.task_count for group in groups],
        [None] * len(groups),
        [None] * len(groups),
        [None] * len(groups),
    )
    pool = Pool.objects.get(name="default")
    return carry_out(
        placements,
        limits=PoolLimits(pool.pk, PoolPolicy(tokens=pool.tokens), has_quotas=True),
        now=stage.now(),
        start_seconds=60,
    )


def test_stale_plan_is_cut_to_the_capacity_left(stage: Stage) -> None:
    stage.cell(cpu=300)
    early, late = stage.submit_small(replicas=2), stage.submit_small(replicas=2)
    stage.place()
    late_again = stage.submit_small(replicas=3)
    assert Attempt.objects.count() == 3
    assert plan(stage, late_again) == 0
    stage.succeed(stage.newest(early)[0])
    assert plan(stage, late, late_again) == 1
    stage.check()


def test_named_resources_limit_placement(stage: Stage) -> None:
    stage.cell()
    cell = Cell.objects.get()
    Cell.objects.update(capacity={**cell.capacity, "fpga": 2})
    job = stage.submit(resources=RARE, replicas=5)
    assert plan(stage, job) == 2
    stage.place()
    assert sorted(stage.states(job)) == ["ASSIGNED"] * 2 + ["PENDING"] * 3
    assert stage.why(job)["code"] == "insufficient_resources"
    memory = stage.submit(resources={"cpu": 0.1, "memory": "3Gi"}, replicas=2)
    assert plan(stage, memory) == 1


def test_ended_attempt_holds_capacity_until_its_cell_confirms(stage: Stage) -> None:
    stage.cell(cpu=100)
    job, attempt = stage.running()
    cancel_job(job_id=job.pk, reason="", force=False, actor="owner", now=stage.now())
    stage.settle()
    waiting = stage.submit_small()
    assert plan(stage, waiting) == 0
    stage.place()
    assert stage.states(waiting) == ["PENDING"]
    stage.confirm(attempt)
    assert plan(stage, waiting) == 1


def test_task_is_placed_once_by_the_first_plan(stage: Stage) -> None:
    stage.cell("cell-1")
    stage.cell("cell-2")
    job = stage.submit_small(replicas=2)
    assert plan(stage, job) == 2
    assert plan(stage, job, cell="cell-2") == 0
    assert stage.cells(job) == ["cell-1", "cell-1"]


def test_cancelled_tasks_and_closed_cells_are_dropped_from_a_plan(stage: Stage) -> None:
    stage.cell()
    gone, there = stage.submit_small(), stage.submit_small()
    cancel_job(job_id=gone.pk, reason="", force=False, actor="owner", now=stage.now())
    assert plan(stage, gone, there) == 1
    assert stage.attempts(gone) == []
    Cell.objects.update(state="CORDONED")
    assert plan(stage, stage.submit_small()) == 0


def test_quotas_are_rechecked_at_placement(stage: Stage) -> None:
    stage.cell()
    Quota.objects.create(user=stage.owner, running_tasks=3)
    Quota.objects.create(project=Project.objects.get(), resources={"cpu_millis": 200})
    job = stage.submit_small(replicas=5)
    assert plan(stage, job) == 2


def test_tokens_are_rechecked_at_placement(stage: Stage) -> None:
    stage.cell("cell-1")
    stage.cell("cell-2")
    stage.policy(tokens={"licence": 3})
    options: dict[str, Any] = {"resources": {**SMALL["resources"], "licence": 2}}  # type: ignore[dict-item]
    first, second = stage.submit(**options), stage.submit(**options)
    assert plan(stage, first) == 1
    assert plan(stage, second, cell="cell-2") == 0
    stage.place()
    assert stage.why(second)["code"] == "insufficient_tokens"


def test_gang_that_no_longer_fits_is_dropped_whole(stage: Stage) -> None:
    stage.cell(cpu=250)
    gang, other = stage.submit_small(replicas=3, coscheduled=True), stage.submit_small()
    assert plan(stage, other, gang) == 1
    assert (stage.states(gang), stage.states(other)) == (["PENDING"] * 3, ["ASSIGNED"])
