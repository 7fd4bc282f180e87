"""What must be true of shares at every instant: of machines, quotas, tokens, zones, kept room."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta
from uuid import UUID

from controlplane import clock
from controlplane.contract.states import TaskState as S
from controlplane.domain.placement.preemption.preempt import NOMINATION_SECONDS
from controlplane.domain.state.states import Band, Reason, ReleaseKind
from controlplane.queries.sql import decoded, rows
from tests.simulation.policies import ZONE
from tests.simulation.world import World

# The longest grace, as long as a nomination lasts after it, and a tick or two.
_PATIENCE = timedelta(seconds=10 + NOMINATION_SECONDS + 5)

_HELD = """
SELECT a.uid, a.cell_id, c.name, c.pool_id, p.name, j.pool_id, j.id, j.owner_id, j.project_id,
       COALESCE(a.resources, g.resources), a.finished_at IS NULL, j.group_by, c.labels,
       g.constraints
FROM controlplane_attempt a
JOIN controlplane_job j ON j.id = a.job_id
JOIN controlplane_cell c ON c.id = a.cell_id
JOIN controlplane_pool p ON p.id = c.pool_id
JOIN (SELECT g.id, g.resources, s.constraints FROM controlplane_taskgroup g
      LEFT JOIN controlplane_shape s ON s.id = g.shape_id) g ON g.id = a.group_id
WHERE a.released_at IS NULL ORDER BY a.uid
"""


def check_shares(world: World) -> list[str]:
    """Return what is wrong, in words, in worlds with contention."""
    if not world.policies.pools:
        return []
    held = rows(_HELD)
    wrong = [*_tokens(held), *_quotas(world, held), *_places(held), *_machines(world)]
    return [*wrong, *_evictions(world), *_kept_room(world)]


def _tokens(held: list[tuple[object, ...]]) -> Iterator[str]:
    used: Counter[tuple[int, str]] = Counter()
    for row in held:
        for name, amount in decoded(row[9]).items():
            used[row[3], name] += amount  # type: ignore[index]
    for pool_id, pool, tokens in rows("SELECT id, name, tokens FROM controlplane_pool"):
        for name, limit in decoded(tokens).items():
            if used[pool_id, name] > limit:
                yield f"{used[pool_id, name]} of {limit} {name} of pool {pool} are held"


def _quotas(world: World, held: list[tuple[object, ...]]) -> Iterator[str]:
    """All jobs are of one project, and one domain. Some pools may be held to no quota."""
    if any(not pool["validators"] for pool in world.policies.pools.values()):
        return
    limits = rows(
        """
        SELECT user_id, project_id, domain_id, resources, running_tasks, running_jobs
        FROM controlplane_quota
        """
    )
    for user, project, domain, resources, tasks, jobs in limits:
        mine = [row for row in held if user is None or row[7] == user]
        whose = f"user {user}" if user else f"project {project}" if project else f"domain {domain}"
        used: Counter[str] = Counter()
        for row in mine:
            used.update(decoded(row[9]))
        counted = {"running tasks": len(mine), "running jobs": len({row[6] for row in mine})}
        requested = {**decoded(resources), "running tasks": tasks, "running jobs": jobs}
        for name, amount in {**used, **counted}.items():
            limit = requested.get(name)
            if limit is not None and amount > limit:
                yield f"{whose} holds {amount} {name}, {limit} are allowed"


def _places(held: list[tuple[object, ...]]) -> Iterator[str]:
    """Each in its job's pool, where its constraints hold, and gangs of a group in one zone."""
    zones = defaultdict[object, set[str]](set)
    for uid, _, cell, pool_id, pool, wanted, job_id, *_, is_open, group_by, labels, needs in held:
        found = decoded(labels)
        if pool_id != wanted:
            yield f"attempt {uid} of job {job_id} is on {cell} of pool {pool}, not of its own"
        for constraint in decoded(needs) or ():
            if constraint["required"] and found.get(constraint["key"]) not in constraint["values"]:
                yield f"attempt {uid} of job {job_id} is on {cell}, which has not {constraint}"
        if group_by and is_open:
            zones[job_id].add(found.get(ZONE, ""))
    for job_id, values in zones.items():
        if len(values) > 1 or "" in values:
            yield f"members of the gang of job {job_id} are in zones {sorted(values)}"


def _machines(world: World) -> Iterator[str]:
    """By the engines: what runs on a machine fits it, except what was lost with its cell."""
    if world.are_journals_harmed:
        return
    names = Counter(machine.name for machine in world.machines)
    living = {
        UUID(life.launch.uid): machine for machine in world.machines for life in machine.living()
    }
    found = rows(
        """
        SELECT a.uid, COALESCE(a.resources, g.resources) FROM controlplane_attempt a
        JOIN controlplane_taskgroup g ON g.id = a.group_id
        WHERE a.uid = ANY(%s) AND a.release_kind <> %s
        """,
        [list(living), ReleaseKind.CELL_LOST.value],
    )
    used: dict[str, Counter[str]] = defaultdict(Counter)
    for uid, resources in found:
        used[living[uid].label].update(decoded(resources))
    for machine in world.machines:
        for name, amount in machine.config.capacity.items():
            if names[machine.name] == 1 and used[machine.label][name] > amount:
                yield f"{used[machine.label][name]} of {amount} {name} run on {machine.label}"


def _evictions(world: World) -> Iterator[str]:
    """Since the last check: only for strictly more important work, never what runs once."""
    found = rows(
        """
        SELECT h.id, h.task_id, h.job_id, j.band, h.message, h.at, g.at_most_once, p.preemption
        FROM controlplane_transition h JOIN controlplane_task t ON t.id = h.task_id
        JOIN controlplane_taskgroup g ON g.id = t.group_id
        JOIN controlplane_job j ON j.id = h.job_id JOIN controlplane_pool p ON p.id = j.pool_id
        WHERE h.id > %s AND h.reason = %s AND h.actor = 'placement' ORDER BY h.id
        """,
        [world.evictions_seen, Reason.PREEMPTED.value],
    )
    moved = world.interventions.moved if world.interventions is not None else ()
    for number, task_id, job_id, band, message, at, is_once, may_evict in found:
        world.evictions_seen = number
        *_, job, text = message.split()
        evictor = Band[text.strip("()").upper()]
        world.evictors[int(job)] = at
        world.evictions.add((int(job), at))
        if band <= evictor and job_id not in moved:
            yield f"task {task_id} of band {Band(band).name} {message}"
        if is_once or not may_evict:
            yield f"task {task_id} was evicted, which may not be: {message}"


def check_evictions(world: World) -> list[str]:
    """If nothing else happens, a job for which others were evicted is placed without delay.

    Except jobs that ended before that: cancelled, or at their scheduling deadline.
    """
    if not world.is_peaceful:
        return []
    wrong = []
    for job_id, at in sorted(world.evictions):
        found = rows(
            """
            SELECT j.finished_at, EXISTS (
                SELECT FROM controlplane_transition h
                WHERE h.job_id = j.id AND h.reason = 'placed' AND h.at > %s AND h.at < %s)
            FROM controlplane_job j WHERE j.id = %s AND j.deleted_at IS NULL
            """,
            [at, at + _PATIENCE, job_id],
        )
        for finished_at, is_placed in found:
            was_ended = finished_at is not None and finished_at < at + _PATIENCE
            if not is_placed and not was_ended:
                wrong.append(f"no task of job {job_id} was placed after evictions for it at {at}")
    return wrong


def _kept_room(world: World) -> Iterator[str]:
    """Where room was made, no task that is as important or less takes it from then on.

    Except tasks for which a place was kept there, also because they waited long.
    """
    if world.interventions is not None and world.interventions.have_begun:
        # No room is kept for held tasks, and moves change the order of tasks.
        return
    before = {(cell_id, task_id) for task_id, cell_id, _ in world.kept}
    for cell_id, name, capacity, need, band, since in _kept(world):
        held = Counter[str]()
        newest: list[tuple[int, set[str]]] = []
        found = rows(
            """
            SELECT a.task_id, a.created_at, a.finished_at IS NULL, j.band,
                   COALESCE(a.resources, g.resources), g.timeout_seconds
            FROM controlplane_attempt a JOIN controlplane_taskgroup g ON g.id = a.group_id
            JOIN controlplane_job j ON j.id = a.job_id
            WHERE a.cell_id = %s AND a.released_at IS NULL
            """,
            [cell_id],
        )
        for task_id, created_at, is_open, other, resources, timeout in found:
            if is_open and timeout is None:
                held.update(decoded(resources))
            if created_at > since and (cell_id, task_id) not in before:
                newest.append((other, set(decoded(resources))))
        lacks = [key for key in capacity if need[key] + held[key] > capacity[key]]
        takers = [other for other, requested in newest if not requested.isdisjoint(lacks)]
        if takers and min(takers) >= band:
            yield f"room of {name} that was freed for a nominated task is used: {lacks} lack"


def _kept(
    world: World,
) -> Iterator[tuple[int, str, dict[str, int], Counter[str], int, datetime]]:
    """By cell, what is kept there, for the least important, and since when it was seen to be.

    Nothing is kept for a task that waits for an identical one: this may take long.
    """
    found = rows(
        """
        SELECT t.id, t.nominated_until, t.nominated_cell_id, c.name, c.capacity,
               COALESCE(t.resources, g.resources), j.band, j.id
        FROM controlplane_task t JOIN controlplane_taskgroup g ON g.id = t.group_id
        JOIN controlplane_job j ON j.id = g.job_id AND j.ending_as IS NULL
        JOIN controlplane_cell c ON c.id = t.nominated_cell_id AND c.state = 'READY'
        WHERE t.state = %s AND NOT t.cache_blocked
        """,
        [int(S.PENDING)],
    )
    need: dict[int, Counter[str]] = defaultdict(Counter)
    bands: dict[int, int] = defaultdict(int)
    since: dict[int, datetime] = {}
    cells = {}
    for task_id, until, cell_id, name, capacity, resources, band, job_id in found:
        seen_at = world.kept.setdefault((task_id, cell_id, until), clock.now())
        if job_id not in world.evictors:
            continue
        cells[cell_id] = name, decoded(capacity)
        need[cell_id].update(decoded(resources))
        bands[cell_id] = max(bands[cell_id], band)
        since[cell_id] = max(since.get(cell_id, seen_at), seen_at)
    for cell_id, (name, capacity) in cells.items():
        capacity = {key: amount for key, amount in capacity.items() if key in need[cell_id]}
        yield cell_id, name, capacity, need[cell_id], bands[cell_id], since[cell_id]
