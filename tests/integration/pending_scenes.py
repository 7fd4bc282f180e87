"""Scenes in which a task waits, one for each text of a pending reason."""

from collections.abc import Callable

from controlplane import clock
from controlplane.commands.cells.operate import cordon_cell
from controlplane.commands.jobs.holds import hold_job, hold_project
from controlplane.contract.states import TaskState as S
from controlplane.domain.roles import Role
from controlplane.domain.state.states import Reason
from controlplane.domain.state.transitions import Event
from controlplane.models import Cell, Job, Pool, Quota, Task
from tests.scenarios.stage import Stage

LATER = "2040-01-01T00:00:00Z"

Scene = Callable[[Stage], tuple[Task, str]]
"""Makes a task wait; returns the task and the expected text."""


def waiting(stage: Stage, job: Job) -> Task:
    """The first task of the job that waits."""
    stage.place()
    found = Task.objects.filter(job=job, state=1).order_by("group_id", "index").first()
    assert found is not None
    return found


def lacks_memory(stage: Stage) -> tuple[Task, str]:
    stage.cell("cell-1", memory=4096)
    stage.cell("cell-2", memory=2048)
    stage.submit(resources={"cpu": 0.1, "memory": "3Gi"})
    stage.place()
    job = stage.submit(resources={"cpu": 0.1, "memory": "2560Mi"})
    text = (
        "no cell has enough free capacity: cell-2 comes closest and lacks 512 of 2560 MiB of memory"
    )
    return waiting(stage, job), text


def matches_no_cell(stage: Stage) -> tuple[Task, str]:
    stage.cell()
    constraint = {"key": "zone", "op": "eq", "values": ["b"]}
    job = stage.submit_small(constraints=[constraint], allow_unsatisfiable=True)
    return waiting(stage, job), "matches: removed by zone = b (1)"


def lacks_what_is_reserved(stage: Stage) -> tuple[Task, str]:
    """The first of two evictions that make room for a larger task is over."""
    stage.cell(cpu=200)
    first, _ = (stage.running(band="batch")[1] for _ in range(2))
    stage.submit(band="production", resources={"cpu": 0.2, "memory": "64Mi"})
    stage.place()
    stage.confirm(first)
    text = "no cell has enough free capacity that is not reserved for other tasks: cell-1 comes"
    return waiting(stage, stage.submit_small()), text


def finds_no_cell(stage: Stage) -> tuple[Task, str]:
    return waiting(stage, stage.submit_small(allow_unsatisfiable=True)), "the pool has no cell"


def finds_no_ready_cell(stage: Stage) -> tuple[Task, str]:
    stage.cell()
    cordon_cell(name="cell-1", actor="olga", now=clock.now())
    job = stage.submit_small(allow_unsatisfiable=True)
    return waiting(stage, job), "the pool has no ready cell (1 CORDONED)"


def is_larger_than_every_cell(stage: Stage) -> tuple[Task, str]:
    stage.cell(memory=2048)
    large = {"cpu": 0.1, "memory": "3Gi"}
    job = stage.submit(resources=large, allow_unsatisfiable=True)
    text = (
        "larger than every cell of the pool: cell-1 comes closest and"
        " lacks 1024 of 3072 MiB of memory"
    )
    return waiting(stage, job), text


def exceeds_quota(stage: Stage) -> tuple[Task, str]:
    stage.cell()
    Quota.objects.create(user=stage.owner, running_tasks=1)
    job = stage.submit_small(replicas=2)
    return waiting(stage, job), "quota of user owner: 1 running tasks + 1 requested > 1 allowed"


def lacks_tokens(stage: Stage) -> tuple[Task, str]:
    Pool.objects.update(tokens={"licence": 3})
    stage.cell()
    job = stage.submit(replicas=2, resources={"cpu": 0.1, "memory": "64Mi", "licence": 2})
    return waiting(stage, job), "tokens licence: 2 used + 2 requested > 3 of the pool"


def finds_its_key_full(stage: Stage) -> tuple[Task, str]:
    stage.cell()
    rule = {"key": "customer-42", "limit": 1}
    first, _ = stage.placed(concurrency=rule)
    job = stage.submit_small(concurrency=rule)
    return waiting(stage, job), (
        "concurrency key customer-42: 1 task on cells + 1 requested > 1 allowed; held by"
        f" job {first.pk}"
    )


def exceeds_the_rate_of_its_key(stage: Stage) -> tuple[Task, str]:
    stage.cell()
    rule = {"key": "customer-42", "starts": {"count": 1, "per_seconds": 30}}
    stage.placed(concurrency=rule)
    job = stage.submit_small(concurrency=rule)
    text = "concurrency key customer-42: 1 started in the last 30 s + 1 requested > 1 allowed"
    return waiting(stage, job), text


def finds_slots_full(stage: Stage) -> tuple[Task, str]:
    Pool.objects.update(max_building_per_cell=1)
    stage.cell()
    Cell.objects.update(drivers=["docker"])
    job = stage.submit_small(replicas=2)
    return waiting(stage, job), "1 cell with room for it already prepares"


def depends_on_group(stage: Stage) -> tuple[Task, str]:
    stage.cell()
    groups = [stage.group("a"), stage.group("b", depends_on=[{"group": "a"}])]
    return waiting(stage, stage.submit(groups=groups)), "waits until group a has succeeded"


def depends_on_job(stage: Stage) -> tuple[Task, str]:
    stage.cell()
    stage.submit_small(guid="first")
    job = stage.submit_small(depends_on=[{"job": "first"}])
    return waiting(stage, job), "waits until job first has succeeded"


def starts_later(stage: Stage) -> tuple[Task, str]:
    stage.cell()
    return waiting(stage, stage.submit_small(start_after=LATER)), "must not start before 2040"


def waits_for_identical_task(stage: Stage) -> tuple[Task, str]:
    stage.cell()
    cache = {"enabled": True, "serialize": True}
    first, second = (stage.submit_small(cache=cache) for _ in range(2))
    stage.converge()
    stage.place()
    stage.converge()
    return waiting(stage, second), f"waits for the result of an identical task of job {first.pk}"


def is_not_found_yet(stage: Stage) -> tuple[Task, str]:
    stage.cell()
    job = stage.submit_small(cache={"enabled": True})
    return waiting(stage, job), "its result is being looked up in the cache"


def waits_for_gang(stage: Stage) -> tuple[Task, str]:
    stage.cell(cpu=2000)
    job = stage.submit(coscheduled=True, replicas=3, allow_unsatisfiable=True)
    return waiting(
        stage, job
    ), "its gang starts together: 3 more tasks must be placed together, 2 could"


def waits_for_gang_to_leave(stage: Stage) -> tuple[Task, str]:
    stage.cell()
    job = stage.submit_small(coscheduled=True, replicas=2)
    stage.place()
    stage.start(*stage.newest(job))
    stage.vanish(stage.newest(job)[0])
    return waiting(stage, job), "waits until the other members of its gang, which fell below its"


def waits_for_container(stage: Stage) -> tuple[Task, str]:
    stage.cell()
    job, _ = stage.running()
    stage.force(job, Event.PREEMPTED, Reason.PREEMPTED)
    return waiting(stage, job), "container of its previous attempt is confirmed gone"


def backs_off(stage: Stage) -> tuple[Task, str]:
    stage.cell()
    job, attempt = stage.running(retries={"failure": 1})
    stage.fail(attempt)
    return waiting(stage, job), "before it is tried again"


def lacks_image(stage: Stage) -> tuple[Task, str]:
    for number in range(3):
        stage.cell(f"cell-{number}", cpu=100)
    job = stage.submit_small(image="lost:1", replicas=3)
    stage.place()
    for attempt in stage.newest(job):
        stage.end(attempt, S.FAILED, failure_kind="system", reason="registry", message="refused")
    stage.converge()
    return waiting(stage, job), "several cells could not pull its image lost:1"


def stands_behind(stage: Stage) -> tuple[Task, str]:
    Pool.objects.update(strict_fifo=True, preemption=False)
    stage.cell(cpu=2000)
    large = stage.submit(replicas=2, resources={"cpu": 1.5, "memory": "64Mi"})
    job = stage.submit_small()
    return waiting(stage, job), f"waits behind job {large.pk}, which does not fit yet"


def is_not_considered_yet(stage: Stage) -> tuple[Task, str]:
    stage.cell()
    return stage.task(stage.submit_small()), "waits for its turn: no placement pass has considered"


def meets_broken_plugin(stage: Stage) -> tuple[Task, str]:
    Pool.objects.update(validators=["broken"])
    stage.cell()
    return waiting(stage, stage.submit_small()), "validator broken failed: an operator must fix"


def is_held(stage: Stage) -> tuple[Task, str]:
    stage.cell()
    job = stage.submit_small()
    hold_job(
        job_id=job.pk,
        reason="the data is wrong",
        role=Role.SUBMITTER,
        actor="owner",
        now=clock.now(),
    )
    return waiting(stage, job), "held by owner: the data is wrong, since 2031-05-04T12:00:00"


def is_in_held_project(stage: Stage) -> tuple[Task, str]:
    stage.cell()
    job = stage.submit_small()
    hold_project(
        project_id=job.project_id,
        reason="over budget",
        role=Role.MANAGER,
        actor="mara",
        now=clock.now(),
    )
    return waiting(stage, job), "its project default/default is held by mara: over budget, since"


SCENES: dict[str, tuple[Scene, ...]] = {
    "held": (is_held, is_in_held_project),
    "insufficient_resources": (
        lacks_memory,
        lacks_what_is_reserved,
        is_larger_than_every_cell,
    ),
    "no_cell_matches": (matches_no_cell, finds_no_ready_cell, finds_no_cell),
    "quota_exceeded": (exceeds_quota,),
    "insufficient_tokens": (lacks_tokens,),
    "concurrency_limit": (finds_its_key_full, exceeds_the_rate_of_its_key),
    "build_slots_full": (finds_slots_full,),
    "waiting_for_dependency": (depends_on_group,),
    "waiting_for_job": (depends_on_job,),
    "waiting_for_cache": (waits_for_identical_task, is_not_found_yet),
    "waiting_for_start_time": (starts_later,),
    "waiting_for_gang": (waits_for_gang,),
    "waiting_for_gang_to_leave": (waits_for_gang_to_leave,),
    "waiting_for_previous_attempt": (waits_for_container,),
    "backing_off": (backs_off, lacks_image),
    "queue_position": (stands_behind, is_not_considered_yet),
    "plugin_failed": (meets_broken_plugin,),
}
"""By code; of each code in the order of the symptoms in docs/troubleshooting.md."""
