"""Quotas: what a user, project or domain may have at once, and what of it is used just now."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from controlplane.contract.states import TaskState
from controlplane.domain.jobs.bands import LimitedScope, default_band
from controlplane.domain.placement.model.binding import (
    binding_quotas,
    count_waiting_by_scope,
    may_bind,
)
from controlplane.domain.placement.model.snapshot import QuotaReservation, ShapeFacts
from controlplane.domain.scopes import Quota, Scope, ScopeKind, ScopeLimits
from controlplane.domain.state.states import Band
from controlplane.queries.sql import decoded, rows, scalar

# What unreleased attempts hold, all pools together: one row for each owner, project and request.
_HELD = """
WITH h AS MATERIALIZED (
    SELECT group_id, resources, count(*), bool_or(finished_at IS NULL) AS is_open
    FROM controlplane_attempt WHERE released_at IS NULL GROUP BY group_id, resources
)
SELECT j.owner_id, j.project_id, p.domain_id, COALESCE(h.resources, g.resources),
       sum(h.count)::bigint,
       CASE WHEN %(jobs)s THEN array_agg(DISTINCT g.job_id) END,
       CASE WHEN %(jobs)s THEN array_agg(DISTINCT g.job_id) FILTER (WHERE h.is_open) END
FROM h JOIN controlplane_taskgroup g ON g.id = h.group_id
JOIN controlplane_job j ON j.id = g.job_id
JOIN controlplane_project p ON p.id = j.project_id
WHERE j.owner_id = ANY(%(user)s) OR j.project_id = ANY(%(project)s) OR p.domain_id = ANY(%(domain)s)
GROUP BY 1, 2, 3, 4
"""
_WAITING = f"""
SELECT j.owner_id, j.project_id, p.domain_id, sum(g.counts[{TaskState.PENDING + 1}])::bigint
FROM controlplane_job j
JOIN controlplane_taskgroup g ON g.job_id = j.id
JOIN controlplane_project p ON p.id = j.project_id
WHERE j.finished_at IS NULL AND (
    j.owner_id = ANY(%(user)s) OR j.project_id = ANY(%(project)s) OR p.domain_id = ANY(%(domain)s)
)
GROUP BY 1, 2, 3
"""
# The quota of each scope: its own, otherwise the default one of its kind, otherwise none.
_LIMITS = """
SELECT s.kind, s.id, s.name, s.own_id IS NULL, q.highest_band,
       q.resources, q.running_tasks, q.running_jobs, q.pending_tasks, q.weight, q.stored_bytes
FROM (
    SELECT 'user' AS kind, u.id, u.username AS name, own.id AS own_id
    FROM auth_user u LEFT JOIN controlplane_quota own ON own.user_id = u.id
    WHERE u.id = ANY(%(user)s)
    UNION ALL
    SELECT 'project', p.id, home.name || '/' || p.name, own.id
    FROM controlplane_project p JOIN controlplane_domain home ON home.id = p.domain_id
    LEFT JOIN controlplane_quota own ON own.project_id = p.id
    WHERE p.id = ANY(%(project)s)
    UNION ALL
    SELECT 'domain', d.id, d.name, own.id
    FROM controlplane_domain d LEFT JOIN controlplane_quota own ON own.domain_id = d.id
    WHERE d.id = ANY(%(domain)s)
) s
LEFT JOIN controlplane_quota preset ON s.own_id IS NULL AND preset.default_for = s.kind
LEFT JOIN controlplane_quota q ON q.id = coalesce(s.own_id, preset.id)
"""
_KINDS = (ScopeKind.USER, ScopeKind.PROJECT, ScopeKind.DOMAIN)


def load_quotas(scopes: Iterable[Scope]) -> tuple[Quota, ...]:
    """Return the quotas that limit `scopes`, default ones included, with their usage in all pools.

    One statement if there is none, otherwise two. Sorted by scope.
    """
    found = [item for item in find_limits(scopes) if item.limits.matter_to_placement]
    limited_jobs = {item.scope for item in found if item.limits.running_jobs is not None}
    usage = load_scope_usage((item.scope for item in found), with_jobs=bool(limited_jobs))
    return tuple(
        Quota(
            scope=item.scope,
            name=item.name,
            limits=item.limits,
            resources=held.resources,
            running_tasks=held.tasks,
            jobs=frozenset(held.jobs if item.scope in limited_jobs else ()),
            leaving_jobs=frozenset(held.leaving_jobs if item.scope in limited_jobs else ()),
            is_default=item.is_default,
        )
        for item, held in ((item, usage[item.scope]) for item in found)
    )


def load_binding_quotas(
    shapes: Iterable[ShapeFacts], reserved_elsewhere: Iterable[QuotaReservation] = ()
) -> tuple[Quota, ...]:
    """Return the quotas that may limit the placement of `shapes`, with their usage in all pools.

    The usage, which costs a statement over all attempts, is read only if a limit could be reached
    although all of them count against it.
    """
    waiting = count_waiting_by_scope(shapes, reserved_elsewhere)
    found = [item for item in find_limits(waiting) if item.limits.matter_to_placement]
    if not found:
        return ()
    running = scalar(
        "SELECT count(*) FROM controlplane_attempt WHERE released_at IS NULL", prepare=True
    )
    near = [
        item.scope
        for item in found
        if may_bind(item.limits, running=running, waiting=waiting[item.scope])
    ]
    return binding_quotas(load_quotas(near), waiting)


def load_reservations_elsewhere(pool_id: int, now: datetime) -> tuple[QuotaReservation, ...]:
    """Return the quota that other pools reserve for nominated tasks that have no attempt."""
    found = rows(
        f"""
        SELECT j.id, j.band, j.owner_id, j.project_id, p.domain_id,
               COALESCE(w.resources, g.resources), w.count
        FROM (
            SELECT group_id, resources, count(*) FROM controlplane_task
            WHERE nominated_cell_id IS NOT NULL AND state = {TaskState.PENDING:d}
              AND NOT attempt_open AND NOT cache_blocked
              AND (not_before IS NULL OR not_before <= %(now)s) AND nominated_until > %(now)s
            GROUP BY group_id, resources
        ) w
        JOIN controlplane_taskgroup g ON g.id = w.group_id
        JOIN controlplane_job j ON j.id = g.job_id
        JOIN controlplane_project p ON p.id = j.project_id
        WHERE j.pool_id <> %(pool)s AND j.ending_as IS NULL ORDER BY j.id, g.id
        """,
        {"pool": pool_id, "now": now},
    )
    return tuple(
        QuotaReservation(
            job_id=job,
            band=Band(band),
            owner_id=owner,
            project_id=project,
            domain_id=domain,
            count=count,
            # A damaged row of another pool must not stop this pool.
            resources={name: n for name, n in decoded(resources).items() if isinstance(n, int)},
        )
        for job, band, owner, project, domain, resources, count in found
    )


@dataclass(slots=True)
class ScopeUsage:
    """What the unreleased attempts of a scope hold.

    Ids, if they are requested: `jobs` of all of them, `open_jobs` of those that have not ended.
    """

    resources: dict[str, int] = field(default_factory=dict)
    tasks: int = 0
    jobs: set[int] = field(default_factory=set)
    open_jobs: set[int] = field(default_factory=set)

    @property
    def leaving_jobs(self) -> set[int]:
        """Those of which nothing runs any more."""
        return self.jobs - self.open_jobs


def find_limits(scopes: Iterable[Scope]) -> list[LimitedScope]:
    """Return the limits of each of `scopes`, sorted by scope."""
    wanted = _keys(scopes)
    if not any(wanted.values()):
        return []
    return sorted(
        (_limited(row) for row in rows(_LIMITS, wanted, prepare=True)), key=lambda item: item.scope
    )


def load_scope_usage(
    scopes: Iterable[Scope], *, with_jobs: bool = False
) -> dict[Scope, ScopeUsage]:
    """What each of `scopes` holds now, in all pools; one statement."""
    usage = {scope: ScopeUsage() for scope in scopes}
    if not usage:
        return {}
    found = rows(_HELD, {**_keys(usage), "jobs": with_jobs})
    for *keys, resources, count, jobs, open_jobs in found:
        amounts = decoded(resources)
        for scope in _scopes_of(keys):
            if scope in usage:
                held = usage[scope]
                held.tasks += count
                held.jobs.update(jobs or ())
                held.open_jobs.update(open_jobs or ())
                for name, amount in amounts.items():
                    held.resources[name] = held.resources.get(name, 0) + amount * count
    return usage


def count_waiting(scopes: Iterable[Scope]) -> dict[Scope, int]:
    """How many tasks of each of `scopes` are PENDING, whatever they wait for; one statement."""
    waiting = dict.fromkeys(scopes, 0)
    if waiting:
        for *keys, count in rows(_WAITING, _keys(waiting)):
            for scope in _scopes_of(keys):
                if scope in waiting:
                    waiting[scope] += count
    return waiting


def _keys(scopes: Iterable[Scope]) -> dict[str, list[int]]:
    """The ids of the scopes, by kind, as parameters of a statement."""
    wanted: dict[str, list[int]] = {kind.value: [] for kind in _KINDS}
    for scope in sorted(set(scopes)):
        wanted[scope.kind.value].append(scope.key)
    return wanted


def _scopes_of(keys: Sequence[int]) -> list[Scope]:
    """The scopes of a row that begins with user, project and domain."""
    return [Scope(kind, key) for kind, key in zip(_KINDS, keys, strict=True)]


def _limited(row: tuple[Any, ...]) -> LimitedScope:
    kind, key, name, is_default, band, resources, tasks, jobs, pending, weight, stored = row
    scope = Scope(ScopeKind(kind), key)
    highest_band = Band[band.upper()] if band else default_band(scope.kind)
    if resources is None:  # there is no quota
        return LimitedScope(scope, name, ScopeLimits(), highest_band)
    amounts: Mapping[str, int] = decoded(resources)
    limits = ScopeLimits(amounts, tasks, jobs, pending, weight)
    return LimitedScope(scope, name, limits, highest_band, is_default, stored)
