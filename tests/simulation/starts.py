"""What must be true whenever a container is created, whatever the rows of its attempt."""

from collections import Counter
from collections.abc import Iterator, Sequence

from controlplane.contract.states import TaskState as S
from controlplane.domain.state.states import ACTIVE, TERMINAL, ReleaseKind
from controlplane.queries.sql import rows
from tests.simulation.cached import check_needed
from tests.simulation.jobs import Submitted
from tests.simulation.witness import Seen
from tests.simulation.world import World


def check_start(world: World, seen: Seen) -> list[str]:
    """What is wrong with the container that was just made, in words."""
    job = world.submitters.find(seen.job_id)
    wrong = [
        *_made_twice(world, job, seen),
        *_before_other_jobs(world, job),
        *_before_other_groups(world, job, seen),
        *_below_a_minimum(job, seen),
        *_retried_needlessly(world, job, seen),
        *check_needed(seen.uid),
    ]
    return [f"attempt {seen.uid} of job {seen.job_id} was begun, but {text}" for text in wrong]


def _made_twice(world: World, job: Submitted, seen: Seen) -> Iterator[str]:
    """At most once: no second container of a task, ever."""
    (group,) = (group for group in job.body["groups"] if group["name"] == seen.group)
    delivery = group.get("delivery", job.body.get("delivery"))
    if delivery != "at_most_once":
        return
    for other in world.witness.of_task(seen.task_id):
        if other is not seen and other.exists:
            yield f"attempt {other.uid} of its task has had a container"


def _before_other_jobs(world: World, job: Submitted) -> Iterator[str]:
    """Its dependencies are met, by the engines or by the row of a job that ended."""
    for other, until in job.waits:
        containers = world.witness.of_job(world.submitters.id_of(other))
        match until:
            case "started":
                is_met = any(it.has_started for it in containers)
            case "finished":
                is_met = _has_ended(other)
            case _:
                is_met = _succeeded(containers) >= other.minimum()
        if not is_met:
            yield f"job {other.name} has not {until}"
    for other in job.replaces:
        for container in world.witness.of_job(world.submitters.id_of(other)):
            if container.is_living and not _is_given_up(container):
                yield f"a container of job {other.job_id}, which it replaces, still runs"


def _before_other_groups(world: World, job: Submitted, seen: Seen) -> Iterator[str]:
    (group,) = (group for group in job.body["groups"] if group["name"] == seen.group)
    for item in group.get("depends_on", ()):
        first, until = item["group"], item.get("until", "succeeded")
        containers = world.witness.of_job(seen.job_id, first)
        if until == "started":
            count = len({it.task_id for it in containers if it.has_started})
        elif until == "succeeded":
            count = _succeeded(containers)
        else:
            continue  # however it ended: see `_started_too_early`
        if count < job.minimum(first):
            yield f"{count} tasks of group {first} have {until}"


def _below_a_minimum(job: Submitted, seen: Seen) -> Iterator[str]:
    """Of a gang nothing begins by itself, unless the gang is just going back to wait, or ends."""
    if not job.body.get("coscheduled"):
        return
    if any(group.get("delivery") for group in job.body["groups"]):
        return  # what runs at most once stays where it is when others are lost
    found = rows(
        """
        SELECT g.name, t.state, count(*) FROM controlplane_attempt a
        JOIN controlplane_job j ON j.id = a.job_id AND j.ending_as IS NULL AND NOT j.is_requeuing
        JOIN controlplane_task t ON t.job_id = j.id
        JOIN controlplane_taskgroup g ON g.id = t.group_id
        WHERE a.uid = %s AND a.finished_at IS NULL GROUP BY g.name, t.state
        """,
        [seen.uid],
    )
    present = Counter[str]()
    for name, state, count in found:
        if S(state) in (*ACTIVE, S.SUCCEEDED):
            present[name] += count
    lacking = [
        group["name"] for group in job.body["groups"] if present[group["name"]] < _least(group)
    ]
    if found and (lacking or present.total() < job.minimum()):
        yield f"its gang has only {dict(present)}"


def _retried_needlessly(world: World, job: Submitted, seen: Seen) -> Iterator[str]:
    """What succeeded in the job that it retries is not tried again."""
    if job.retries is None:
        return
    found = rows(
        """
        SELECT t.state FROM controlplane_task t JOIN controlplane_taskgroup g ON g.id = t.group_id
        WHERE t.job_id = %s AND g.name = %s AND t.index = %s
        """,
        [job.retries.job_id, seen.group, seen.life.launch.run.task_index],
    )
    for (state,) in found:
        if S(state) is S.SUCCEEDED:
            yield f"its task had succeeded in job {job.retries.job_id}"


def _least(group: dict[str, int]) -> int:
    return group.get("min_available", group["replicas"])


def _succeeded(containers: Sequence[Seen]) -> int:
    return len({it.task_id for it in containers if it.has_succeeded})


def _has_ended(job: Submitted) -> bool:
    found = rows("SELECT state FROM controlplane_job WHERE id = %s", [job.job_id])
    return not found or S(found[0][0]) in TERMINAL


def _is_given_up(seen: Seen) -> bool:
    """Return whether its cell was lost, so that its containers are unknown."""
    found = rows(
        "SELECT release_kind FROM controlplane_attempt WHERE uid = %s",
        [seen.uid],
    )
    return not found or found[0][0] == ReleaseKind.CELL_LOST
