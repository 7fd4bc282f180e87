"""The truths of what is kept and deleted: guids, claims, and what something still refers to."""

from collections.abc import Iterator
from datetime import datetime

from controlplane.queries.sql import rows
from tests.simulation.jobs import Submitted
from tests.simulation.submitters import load_end
from tests.simulation.world import World

# A claim that no client follows up is released after 30 s, by one of the next ticks.
CLAIM_AT_MOST_SECONDS = 60.0


def check_kept(world: World) -> list[str]:
    """What is wrong, in words."""
    if world.one_offs is None and not world.expires:
        return []
    _remember_ends(world)
    wrong = [*_live_twice(), *_claimed_for_ever(world)]
    if world.one_offs is not None:
        wrong += world.one_offs.wrong
    return [*wrong, *_deleted_too_soon(world)]


def _remember_ends(world: World) -> None:
    """Remember the ends: an ended job may be deleted before the next check."""
    for job in world.jobs:
        if job.job_id is not None and (end := load_end(job.job_id)):
            job.seen = end


def _live_twice() -> Iterator[str]:
    """A guid has at most one task that is not deleted, in the place of its owner."""
    statement = """
        SELECT guid FROM controlplane_job WHERE is_one_off AND deleted_at IS NULL
        GROUP BY guid HAVING count(*) > 1
        """
    for (guid,) in rows(statement):
        yield f"guid {guid} has more than one task"
    statement = """
        SELECT coalesce(o.guid, j.guid) FROM controlplane_oneoff o
        FULL JOIN (SELECT * FROM controlplane_job WHERE is_one_off AND deleted_at IS NULL) j
        ON j.id = o.job_id WHERE o.job_id IS NULL OR j.id IS NULL
        """
    for (guid,) in rows(statement):
        yield f"guid {guid} is of a deleted task, or a task is not found by it"


def _claimed_for_ever(world: World) -> Iterator[str]:
    """When nothing is away any more, a claim is over after its time."""
    if world.healed_at is None or world.timeline.now < world.healed_at + CLAIM_AT_MOST_SECONDS:
        return
    statement = """
        SELECT guid, claimed_by, claimed_at FROM controlplane_oneoff
        WHERE claimed_at < %s - make_interval(secs => %s)
        """
    found = rows(statement, [world.timeline.datetime(), CLAIM_AT_MOST_SECONDS])
    for guid, by, at in found:
        yield f"one-off {guid} is RESOLVING by {by} since {at}"


def _deleted_too_soon(world: World) -> Iterator[str]:
    """Nothing was deleted for its age that something referred to just then."""
    found = rows(
        """
        SELECT id, at, split_part(subject, ' ', 2)::bigint FROM controlplane_auditline
        WHERE actor = 'convergence' AND subject LIKE 'job %%' AND id > %s ORDER BY id
        """,
        [world.audited],
    )
    for line, at, job_id in found:
        world.audited = line
        job = world.submitters.find(job_id)
        if job.body.get("ttl_seconds_after_finished") is None and job.retries is None:
            yield f"job {job_id} was deleted for its age, which no policy allows"
        for other in world.jobs:
            if other.job_id is not None and (why := _refers(other, job, at)):
                yield f"job {job_id} was deleted at {at}, but job {other.job_id} {why}"


def _refers(other: Submitted, job: Submitted, at: datetime) -> str:
    """Why `other` needed `job` at that time; empty: it did not."""
    unfinished = bool(
        rows(
            """
            SELECT 1 FROM controlplane_job WHERE id = %s AND created_at < %s
            AND (finished_at IS NULL OR finished_at > %s)
            """,
            [other.job_id, at, at],
        )
    )
    if not unfinished:
        return ""
    if other.parent is job:
        return "is its child"
    if other.retries is job:
        return "retries it"
    if any(awaited is job for awaited, _ in other.waits) and rows(
        """
        SELECT 1 FROM controlplane_jobdependency WHERE job_id = %(id)s AND on_job_id = %(on)s
        AND (met_at IS NULL OR met_at > %(at)s) AND (failed_at IS NULL OR failed_at > %(at)s)
        """,
        {"id": other.job_id, "on": job.job_id, "at": at},
    ):
        return "waits for it"
    return ""
