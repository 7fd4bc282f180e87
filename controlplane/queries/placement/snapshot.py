"""Load the input of a placement pass in two steps: shapes and cells, then rows that may move."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import itemgetter
from typing import Any, NamedTuple

from controlplane.contract.states import TaskState as S
from controlplane.domain.constraints import Constraint
from controlplane.domain.placement.cycle.prefilter import PrefilterResult
from controlplane.domain.placement.model.concurrency import ConcurrencyRule
from controlplane.domain.placement.model.policy import PoolPolicy
from controlplane.domain.placement.model.snapshot import (
    GangFacts,
    Nomination,
    PassFacts,
    PendingRows,
    PoolSnapshot,
    ShapeFacts,
)
from controlplane.domain.state.job_rollup import gang_of
from controlplane.domain.state.states import Band, CellState
from controlplane.models import Pool
from controlplane.queries.cells.capacity import load_cells, load_usage
from controlplane.queries.holds import PROJECT_IS_HELD
from controlplane.queries.locks import load_groups
from controlplane.queries.placement.concurrency import load_key_usage
from controlplane.queries.placement.quotas import load_binding_quotas, load_reservations_elsewhere
from controlplane.queries.placement.running_attempts import is_any_below
from controlplane.queries.sql import Row, decoded, named_rows, rows, scalar

# Tasks placed in one pass: 50 orders a message with 100 cells, and locks for half a second.
TASKS_PER_PASS = 5_000
# Rows (groups of waiting tasks) considered in one pass; the next pass continues after them.
MAX_ROWS = 20_000
# The limit of rows of shapes without room, for which room may only be made.
MAX_HEADS = 200


@dataclass(frozen=True, slots=True)
class WaitingShapes:
    """The waiting shapes of one pool. `unreadable`: ids and errors of invalid rows.

    `is_room_kept`: some task of any pool has a reservation.
    """

    pool_id: int
    is_room_kept: bool = False
    shapes: list[ShapeFacts] = field(default_factory=list)
    unreadable: list[tuple[int, str]] = field(default_factory=list)


def load_waiting_shapes(now: datetime) -> list[WaitingShapes]:
    """Return the waiting shapes by pool, without those of held projects.

    They are counted by the index of waiting tasks alone, which is cheap. Other reasons against a
    start are read with the rows.
    """
    found = rows(
        f"""
        SELECT s.pool_id, s.id, s.band, s.owner_id, s.project_id, p.domain_id, w.count,
               s.resources, s.task_type, s.constraints, s.placement_tags, s.coscheduled,
               s.allow_unsatisfiable, s.pending_reason, s.concurrency,
               (SELECT nominated_cell_id FROM controlplane_task
                WHERE nominated_cell_id IS NOT NULL ORDER BY nominated_cell_id LIMIT 1) IS NOT NULL
        FROM (
            SELECT shape_id, count(*) FROM controlplane_task
            WHERE state = {S.PENDING:d} AND NOT attempt_open AND NOT cache_blocked
              AND (not_before IS NULL OR not_before <= %s) GROUP BY shape_id
        ) w
        JOIN controlplane_shape s ON s.id = w.shape_id
        JOIN controlplane_project p ON p.id = s.project_id
        WHERE NOT {PROJECT_IS_HELD.format(project="s.project_id")}
        ORDER BY s.pool_id, s.id
        """,
        [now],
        prepare=True,
    )
    pools: dict[int, WaitingShapes] = {}
    for pool_id, *row, is_room_kept in found:
        pool = pools.setdefault(pool_id, WaitingShapes(pool_id, is_room_kept))
        try:
            pool.shapes.append(_shape(row))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            pool.unreadable.append((row[0], repr(error)))
    return list(pools.values())


def _shape(row: Sequence[Any]) -> ShapeFacts:
    number, band, owner, project, domain, count, resources, task_type, constraints, tags = row[:10]
    coscheduled, unsatisfiable, reason, rule = row[10:]
    return ShapeFacts(
        shape_id=number,
        band=Band(band),
        owner_id=owner,
        project_id=project,
        domain_id=domain,
        count=count,
        resources=_amounts(decoded(resources)),
        task_type=task_type,
        constraints=tuple(map(Constraint.read, decoded(constraints))),
        placement_tags=tuple(tags),
        coscheduled=coscheduled,
        allow_unsatisfiable=unsatisfiable,
        reason=decoded(reason),
        concurrency=None if rule is None else ConcurrencyRule.read(decoded(rule)),
    )


def _amounts(found: Mapping[str, Any]) -> dict[str, int]:
    """Return the requests of a task, without zeros. Raise ValueError if they are invalid."""
    amounts = {name: int(amount) for name, amount in found.items()}
    if not all(0 <= amount < 1 << 53 for amount in amounts.values()):
        raise ValueError(f"an amount is below 0 or beyond 2^53: {found}")
    return {name: amount for name, amount in amounts.items() if amount}


class WaitingTasks(NamedTuple):
    """Whether some task waits, and whether `load_waiting_shapes` finds one that may be placed.

    `mark`: of the tick.
    """

    any: bool
    placeable: bool
    mark: int


def find_pending(tick: str, now: datetime) -> WaitingTasks:
    """Return what waits and the mark of the tick.

    This is the only statement of an idle tick besides the record of its run.
    """
    waiting = f"""
        SELECT 1 FROM controlplane_task
        WHERE state = {S.PENDING:d} AND NOT attempt_open AND NOT cache_blocked
        """
    placeable = f"{waiting} AND (not_before IS NULL OR not_before <= %s)"
    mark = "COALESCE((SELECT mark FROM controlplane_tickstate WHERE name = %s), 0)"
    statement = f"SELECT EXISTS ({waiting}), EXISTS ({placeable}), {mark}"
    return WaitingTasks(*rows(statement, [now, tick], prepare=True)[0])


def load_policy(pool_id: int) -> tuple[str, PoolPolicy]:
    """Return the name of a pool and its policy, from its row."""
    # By SQL: each pass loads one, and a QuerySet takes some 0.6 ms.
    [pool] = named_rows(
        """
        SELECT name, sequencer, selector, validators, strict_fifo, preemption,
               max_building_per_cell, starvation_seconds, tokens, cursor
        FROM controlplane_pool WHERE id = %s
        """,
        [pool_id],
        prepare=True,
    )
    return pool.name, policy_of(pool)


def policy_of(pool: Pool | Row) -> PoolPolicy:
    """Return the policy in the row of a pool."""
    return PoolPolicy(
        sequencer=pool.sequencer,
        selector=pool.selector,
        validators=tuple(pool.validators),
        strict_fifo=pool.strict_fifo,
        preemption=pool.preemption,
        max_building_per_cell=pool.max_building_per_cell,
        starvation_seconds=pool.starvation_seconds,
        tokens=decoded(pool.tokens),
        cursor=pool.cursor,
    )


def load_snapshot(
    pool_id: int,
    name: str,
    policy: PoolPolicy,
    shapes: Sequence[ShapeFacts],
    *,
    now: datetime,
    with_owners: bool,
    with_nominations: bool = True,
) -> PoolSnapshot:
    """Run the first step: load the pool's cells and their usage for the waiting `shapes`.

    `with_owners`: with the usage of owners and projects; `with_nominations`: also load
    reservations.
    """
    cells, held = load_cells(pool_id)
    ready = sorted((c for c in cells if c.state is CellState.READY), key=lambda cell: cell.name)
    unready: dict[CellState, int] = defaultdict(int)
    tokens_used: dict[str, int] = defaultdict(int)
    for cell in cells:
        if cell.state is not CellState.READY:
            unready[cell.state] += 1
        for token in policy.tokens:
            tokens_used[token] += cell.used.get(token, 0)
    elsewhere = load_reservations_elsewhere(pool_id, now) if with_nominations else ()
    return PoolSnapshot(
        pool_id=pool_id,
        name=name,
        now=now,
        policy=policy,
        cells=tuple(ready),
        shapes=tuple(shapes),
        unready_cells=dict(unready),
        quotas=load_binding_quotas(shapes, elsewhere),
        tokens_used=dict(tokens_used),
        owner_usage=held.owners if with_owners else {},
        project_usage=held.projects if with_owners else {},
        nominations=_load_nominations([c.cell_id for c in ready]) if with_nominations else (),
        reserved_elsewhere=elsewhere,
        key_usage=load_key_usage((shape.concurrency for shape in shapes), now=now),
    )


def _load_nominations(cell_ids: Sequence[int]) -> tuple[Nomination, ...]:
    """Return the reservations on the cells, and when each cell should be free at the latest."""
    kept = rows(
        f"""
        SELECT nominated_cell_id, group_id, count(*), min(nominated_until) FROM controlplane_task
        WHERE nominated_cell_id = ANY(%s) AND state = {S.PENDING:d} GROUP BY 1, 2 ORDER BY 1, 2
        """,
        [list(cell_ids)],
    )
    if not kept:
        return ()
    ends = dict(
        rows(
            """
            SELECT a.cell_id, CASE WHEN bool_and(a.started_at IS NOT NULL
                                                 AND g.timeout_seconds IS NOT NULL)
                THEN max(a.started_at + make_interval(secs => g.timeout_seconds)) END
            FROM controlplane_attempt a JOIN controlplane_taskgroup g ON g.id = a.group_id
            WHERE a.cell_id = ANY(%s) AND a.released_at IS NULL GROUP BY a.cell_id
            """,
            [sorted({cell_id for cell_id, *_ in kept})],
        )
    )
    return tuple(
        Nomination(cell_id, group_id, count, until, ends.get(cell_id))
        for cell_id, group_id, count, until in kept
    )


# The order of the rows of one group. Without it, the plan of the statement would decide.
_IN_GROUP = """
    w.group_id, w.nominated_cell_id, w.prefer_cell_id, w.avoid_cell_ids, w.shape_id
    """
_ROWS = f"""
WITH w AS MATERIALIZED (
    SELECT shape_id, group_id, avoid_cell_ids, nominated_cell_id, prefer_cell_id, count(*),
           min(updated_at) AS since
    FROM controlplane_task
    WHERE state = {S.PENDING:d} AND NOT attempt_open AND NOT cache_blocked
      AND shape_id = ANY(%(shapes)s) AND (not_before IS NULL OR not_before <= %(now)s)
    GROUP BY shape_id, group_id, avoid_cell_ids, nominated_cell_id, prefer_cell_id
)
SELECT j.band, (j.coscheduled AND j.started_at IS NOT NULL) AS first, g.job_id, g.position,
       w.shape_id, w.group_id, w.count, j.parent_id IS NOT NULL,
       GREATEST(g.startable_at, w.since), g.timeout_seconds, w.avoid_cell_ids,
       w.nominated_cell_id, w.prefer_cell_id, g.pending_reason, j.coscheduled, j.queue_rank
FROM w JOIN controlplane_taskgroup g ON g.id = w.group_id
JOIN controlplane_job j ON j.id = g.job_id
WHERE j.ending_as IS NULL AND NOT j.is_requeuing AND NOT j.is_held
  AND g.startable_at <= %(now)s
  AND (NOT %(only_jobs)s OR g.job_id = ANY(%(jobs)s))
ORDER BY w.nominated_cell_id IS NULL, {{order}}, {_IN_GROUP} LIMIT %(limit)s
"""
# The order in which rows are read up to the limit of a pass. Rows with a reservation come first,
# otherwise the reservation would be useless.
_OLDEST = "j.band, 2 DESC, j.queue_rank, g.job_id, g.position"
_NEWEST = "j.band, 2 DESC, j.queue_rank, g.job_id DESC, g.position"
_EACH_OWNER = f"""
    j.band, 2 DESC, row_number() OVER (
        PARTITION BY j.band, j.owner_id, j.project_id
        ORDER BY j.queue_rank, g.job_id, g.position, {_IN_GROUP})
    """


def load_pass_facts(
    snapshot: PoolSnapshot,
    screened: PrefilterResult,
    *,
    by_owner: bool,
    limit: int = MAX_ROWS,
) -> PassFacts:
    """Run the second step: load rows of the placeable shapes, and the gangs among them.

    `by_owner`: if there are more than `limit` rows, some of each owner and project come first.
    """
    now, is_lifo = snapshot.now, snapshot.policy.sequencer == "lifo"
    order = _EACH_OWNER if by_owner else _NEWEST if is_lifo else _OLDEST
    found = _load_rows(screened.full, now, order, limit)
    is_whole = len(found) < limit
    running = {job_id for quota in snapshot.quotas for job_id in quota.jobs}
    of_running = _load_rows(screened.of_running, now, order, limit, jobs=running)
    is_whole = is_whole and len(of_running) < limit
    may_be_served = _may_be_served(snapshot, screened.heads)
    heads = _load_rows(screened.heads, now, _OLDEST, MAX_HEADS) if may_be_served else []
    found += {_row_key(row): row for row in (*of_running, *heads)}.values()
    found.sort(key=_PLACE)
    gangs = {row[2] for row in found if row[14]}
    return PassFacts(
        waiting=_waiting(found),
        gangs=load_gangs(gangs),
        is_whole=is_whole,
        partial=screened.heads | screened.of_running,
    )


def _may_be_served(snapshot: PoolSnapshot, heads: Collection[int]) -> bool:
    """Return whether room may be made or is reserved for any of the shapes without room.

    Otherwise their rows are not read, which took half of a pass.
    """
    if not heads or snapshot.nominations:
        return bool(heads)
    policy = snapshot.policy
    if policy.preemption:
        highest = min(shape.band for shape in snapshot.shapes if shape.shape_id in heads)
        if is_any_below([cell.cell_id for cell in snapshot.cells], highest):
            return True
    if policy.starvation_seconds is None:
        return False
    # Group ids ascend by submission: no task waits longer than the first one of its shape.
    statement = f"""
        SELECT EXISTS (
            SELECT FROM unnest(%s::bigint[]) s (id), LATERAL (
                SELECT group_id FROM controlplane_task
                WHERE shape_id = s.id AND state = {S.PENDING:d} AND NOT attempt_open
                  AND NOT cache_blocked
                ORDER BY shape_id, group_id, index LIMIT 1
            ) first
            JOIN controlplane_taskgroup g ON g.id = first.group_id
            JOIN controlplane_job j ON j.id = g.job_id
            WHERE LEAST(j.created_at, g.startable_at) <= %s)
        """
    latest = snapshot.now - timedelta(seconds=policy.starvation_seconds)
    return bool(scalar(statement, [sorted(heads), latest]))


_PLACE = itemgetter(0, 15, 2, 3)  # band, rank, job, position; the sort is stable
_row_key = itemgetter(4, 5, 10, 11, 12)  # shape, group; avoided, nominated and preferred cell


def _load_rows(
    shape_ids: Iterable[int],
    now: datetime,
    order: str,
    limit: int,
    *,
    jobs: Iterable[int] | None = None,
) -> list[tuple[Any, ...]]:
    """Return at most `limit` rows of the shapes, of `jobs` only if given."""
    ids, only = sorted(shape_ids), sorted(jobs or ())
    if not ids or (jobs is not None and not only):
        return []
    parameters = {"shapes": ids, "now": now, "limit": limit, "jobs": only}
    found = rows(
        _ROWS.format(order=order), {**parameters, "only_jobs": jobs is not None}, prepare=True
    )
    return [row if row[10] is None else (*row[:10], tuple(row[10]), *row[11:]) for row in found]


def _waiting(found: Sequence[tuple[Any, ...]]) -> PendingRows:
    if not found:
        return PendingRows()
    columns = zip(*(row[:13] for row in found), strict=True)
    _, first, jobs, _, shapes, groups, counts, children, since, timeouts, *cells = columns
    reasons = [decoded(row[13]) if row[14] else None for row in found]
    return PendingRows(
        shape_ids=shapes,
        group_ids=groups,
        job_ids=jobs,
        counts=counts,
        is_first=first,
        is_child=children,
        since=since,
        timeout_seconds=timeouts,
        avoid_cell_ids=cells[0],
        nominated_cell_ids=cells[1],
        prefer_cell_ids=cells[2],
        reasons=reasons,
        ranks=[row[15] for row in found],
    )


def load_gangs(job_ids: Iterable[int]) -> dict[int, GangFacts]:
    """Return the gangs among `job_ids`, with the states of their members and their cells."""
    ids = sorted(set(job_ids))
    if not ids:
        return {}
    found = rows(
        """
        SELECT id, min_available, group_by FROM controlplane_job
        WHERE id = ANY(%s) AND coscheduled
        """,
        [ids],
    )
    groups = load_groups([job_id for job_id, *_ in found])
    places: dict[int, set[int]] = defaultdict(set)
    for job_id, cell_id in rows(
        """
        SELECT DISTINCT job_id, cell_id FROM controlplane_attempt
        WHERE job_id = ANY(%s) AND released_at IS NULL AND finished_at IS NULL
        """,
        [[job_id for job_id, _, group_by in found if group_by]],
    ):
        places[job_id].add(cell_id)
    return {
        job_id: GangFacts(
            group_ids=tuple(group.facts.group_id for group in groups[job_id]),
            groups=tuple(gang_of(groups[job_id])),
            min_available=minimum,
            group_by=group_by,
            cell_ids=frozenset(places[job_id]),
        )
        for job_id, minimum, group_by in found
    }


def find_jobs_of_groups(group_ids: Iterable[int]) -> list[int]:
    """Return the jobs of the groups."""
    statement = "SELECT DISTINCT job_id FROM controlplane_taskgroup WHERE id = ANY(%s)"
    return sorted(job_id for (job_id,) in rows(statement, [sorted(set(group_ids))]))


def lock_tokens(pool_id: int, names: Iterable[str]) -> dict[str, int]:
    """Lock the pool's row; return how many of the tokens unreleased attempts hold."""
    rows("SELECT id FROM controlplane_pool WHERE id = %s FOR NO KEY UPDATE", [pool_id])
    cells = rows("SELECT id FROM controlplane_cell WHERE pool_id = %s", [pool_id])
    held: dict[str, int] = dict.fromkeys(names, 0)
    for used in load_usage([cell_id for (cell_id,) in cells]).values():
        for name in held:
            held[name] += used.get(name, 0)
    return held


def find_tenants(job_ids: Iterable[int]) -> dict[int, tuple[int, int, int]]:
    """Return the owner, project and domain of jobs."""
    found = rows(
        """
        SELECT j.id, j.owner_id, j.project_id, p.domain_id FROM controlplane_job j
        JOIN controlplane_project p ON p.id = j.project_id WHERE j.id = ANY(%s)
        """,
        [sorted(set(job_ids))],
    )
    return {job_id: (owner, project, domain) for job_id, owner, project, domain in found}


def lock_quotas(job_ids: Iterable[int]) -> bool:
    """Lock the quotas of the jobs that limit placements, by id; return whether there are any.

    Default quotas are locked too: they may apply to any job.
    """
    found = rows(
        """
        WITH tenant AS MATERIALIZED (
            SELECT DISTINCT j.owner_id, j.project_id, p.domain_id FROM controlplane_job j
            JOIN controlplane_project p ON p.id = j.project_id WHERE j.id = ANY(%s)
        )
        SELECT q.id FROM controlplane_quota q
        WHERE (q.user_id IN (SELECT owner_id FROM tenant)
           OR q.project_id IN (SELECT project_id FROM tenant)
           OR q.domain_id IN (SELECT domain_id FROM tenant)
           OR q.default_for <> '')
          AND (q.resources <> '{}' OR q.running_tasks IS NOT NULL OR q.running_jobs IS NOT NULL)
        ORDER BY q.id FOR NO KEY UPDATE OF q
        """,
        [sorted(set(job_ids))],
    )
    return bool(found)
