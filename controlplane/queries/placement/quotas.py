"""Quotas: what a user, project or domain may have at once, and what of it is used just now."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controlplane.contract.states import TaskState
from controlplane.domain.scopes import Quota, Scope, ScopeKind, ScopeLimits
from controlplane.queries.sql import decoded, rows

# What unreleased attempts hold, all pools together: one row for each owner, project and request.
_HELD = """
SELECT j.owner_id, j.project_id, p.domain_id, g.resources, sum(h.count)::bigint,
       CASE WHEN %(jobs)s THEN array_agg(DISTINCT g.job_id) END,
       CASE WHEN %(jobs)s THEN array_agg(DISTINCT g.job_id) FILTER (WHERE h.is_open) END
FROM (
    SELECT group_id, count(*), bool_or(finished_at IS NULL) AS is_open
    FROM controlplane_attempt WHERE released_at IS NULL GROUP BY group_id
) h
JOIN controlplane_taskgroup g ON g.id = h.group_id
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
_QUOTAS = """
SELECT q.user_id, q.project_id, q.domain_id,
       coalesce(u.username, home.name || '/' || p.name, d.name),
       q.resources, q.running_tasks, q.running_jobs, q.pending_tasks, q.weight
FROM controlplane_quota q
LEFT JOIN auth_user u ON u.id = q.user_id
LEFT JOIN controlplane_project p ON p.id = q.project_id
LEFT JOIN controlplane_domain home ON home.id = p.domain_id
LEFT JOIN controlplane_domain d ON d.id = q.domain_id
"""
_KINDS = (ScopeKind.USER, ScopeKind.PROJECT, ScopeKind.DOMAIN)


def load_quotas(scopes: Iterable[Scope]) -> tuple[Quota, ...]:
    """The quotas of those of `scopes` that have one, with what is used of them in all pools.

    One statement where there is none, else two. In order of scope.
    """
    found = find_limits(scopes)
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
        )
        for item, held in ((item, usage[item.scope]) for item in found)
    )


@dataclass(frozen=True, slots=True)
class LimitedScope:
    """A scope that has a quota, and its limits."""

    scope: Scope
    name: str
    limits: ScopeLimits


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
    """The quotas that are there for `scopes`, in order of scope."""
    wanted = _keys(scopes)
    if not any(wanted.values()):
        return []
    condition = " OR ".join(f"q.{kind}_id = ANY(%({kind})s)" for kind in _KINDS)
    return sorted(
        (_limited(row) for row in rows(f"{_QUOTAS} WHERE {condition}", wanted)),
        key=lambda limited: limited.scope,
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
    *keys, name, resources, running_tasks, running_jobs, pending_tasks, weight = row
    [scope] = [Scope(kind, key) for kind, key in zip(_KINDS, keys, strict=True) if key is not None]
    amounts: Mapping[str, int] = decoded(resources)
    limits = ScopeLimits(amounts, running_tasks, running_jobs, pending_tasks, weight)
    return LimitedScope(scope, name, limits)
