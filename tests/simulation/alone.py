"""The truths of exclusive tasks: no two attempts at the same time, and none given up too soon."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from controlplane.domain.convergence.lost_cells import EXCLUSIVE_MARGIN_SECONDS
from controlplane.queries.sql import rows
from tests.simulation.jobs import Submitted
from tests.simulation.witness import Seen
from tests.simulation.world import World


def check_alone(world: World) -> list[str]:
    """What is wrong, in words."""
    by_task = defaultdict(list)
    for seen in world.witness.all():
        if seen.has_started and is_exclusive(world.submitters.find(seen.job_id), seen.group):
            by_task[seen.task_id].append(seen)
    wrong = [text for runs in by_task.values() for text in _overlaps(world, runs)]
    wrong += [text for machine in world.machines for text in machine.wrong]
    return wrong + _given_up_soon()


def is_exclusive(job: Submitted, group: str) -> bool:
    """Return whether its submitter requested it, for it or for the job that it retries."""
    while job.retries is not None:
        job = job.retries
    (found,) = (item for item in job.body["groups"] if item["name"] == group)
    return bool(found.get("exclusive", job.body.get("exclusive")))


def _overlaps(world: World, runs: list[Seen]) -> Iterator[str]:
    """By the clock of the world, whatever the machines' clocks show."""
    runs.sort(key=lambda seen: seen.started_at)
    for first, second in pairwise(runs):
        ended_at = min(first.ended_at, world.timeline.now)
        if second.started_at < ended_at:
            yield (
                f"attempt {second.uid} of exclusive task {second.task_id} began on"
                f" {second.machine.label} {ended_at - second.started_at:.3f} s before attempt"
                f" {first.uid} had ended on {first.machine.label}"
            )


def _given_up_soon() -> list[str]:
    """Attempts released by a loss before their guard must have ended them by any clock."""
    found = rows(
        """
        SELECT a.uid, min(a.released_at - l.raised_at) FROM controlplane_attempt a
        JOIN controlplane_taskgroup g ON g.id = a.group_id AND g.exclusive <> ''
        JOIN controlplane_cell c ON c.id = a.cell_id
        JOIN controlplane_alert l ON l.kind = 'cell_lost' AND l.subject = c.name
            AND l.raised_at BETWEEN a.created_at AND a.released_at
        WHERE a.release_kind = 'cell_lost' GROUP BY a.uid
        HAVING max(a.released_at - l.raised_at) < make_interval(secs => %s)
        """,
        [EXCLUSIVE_MARGIN_SECONDS],
    )
    return [f"exclusive attempt {uid} was given up {after} after its cell" for uid, after in found]
