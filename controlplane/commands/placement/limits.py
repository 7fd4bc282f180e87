"""Check quotas, tokens and concurrency keys again from the rows before tasks are placed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from controlplane import clock
from controlplane.domain.placement.cycle.key_usage import KeyAccounting
from controlplane.domain.placement.model.concurrency import ConcurrencyRule
from controlplane.domain.placement.model.policy import PoolPolicy
from controlplane.domain.scopes import Quota, scopes_of
from controlplane.domain.state.effects import Placement
from controlplane.queries.placement.concurrency import load_key_usage, lock_keys
from controlplane.queries.placement.quotas import load_quotas
from controlplane.queries.placement.snapshot import find_tenants, lock_quotas, lock_tokens

_Requests = Mapping[int, Mapping[str, int]]


def within_tokens(
    placements: Sequence[Placement],
    requests: _Requests,
    tokens: Mapping[str, int],
    pool_id: int,
) -> list[Placement]:
    """Return the placements within the pool's tokens, in order; lock the pool if any needs some."""
    requested = {name for item in placements for name in requests[item.group_id]} & set(tokens)
    if not requested:
        return list(placements)
    held = lock_tokens(pool_id, requested)
    kept = []
    for item in placements:
        wants = {name: n for name, n in requests[item.group_id].items() if name in requested}
        if all(held[name] + amount <= tokens[name] for name, amount in wants.items()):
            kept.append(item)
            for name, amount in wants.items():
                held[name] += amount
    return kept


def within_keys(
    placements: Sequence[Placement], rules: Mapping[int, ConcurrencyRule]
) -> list[Placement]:
    """Return the placements that the concurrency keys admit, in order, with the keys they hold.

    `rules`: by group; other groups have no key. Lock the keys until the end of the transaction.
    """
    used = {rules[item.group_id] for item in placements if item.group_id in rules}
    if not used:
        return list(placements)
    lock_keys(rule.key_id for rule in used)
    accounting = KeyAccounting(load_key_usage(used, now=clock.now()))
    kept = []
    for item in placements:
        rule = rules.get(item.group_id)
        if rule is None:
            kept.append(item)
        elif accounting.claim(rule, 1):
            kept.append(replace(item, concurrency_id=rule.key_id))
    return kept


class _RemainingQuota:
    """The usage of a quota by a pool's tasks, updated with each placement."""

    def __init__(self, quota: Quota, policy: PoolPolicy) -> None:
        self._limits = policy.binding(quota.scope.kind, quota.limits)
        self._resources = dict(quota.resources)
        self._tasks, self._jobs = quota.running_tasks, set(quota.jobs)

    def admits(self, request: Mapping[str, int], job_id: int) -> bool:
        limits = self._limits
        if limits.running_tasks is not None and self._tasks >= limits.running_tasks:
            return False
        is_new = job_id not in self._jobs
        if limits.running_jobs is not None and is_new and len(self._jobs) >= limits.running_jobs:
            return False
        return all(
            self._resources.get(name, 0) + request.get(name, 0) <= limit
            for name, limit in limits.resources.items()
            if request.get(name, 0)
        )

    def book(self, request: Mapping[str, int], job_id: int) -> None:
        self._tasks += 1
        self._jobs.add(job_id)
        for name, amount in request.items():
            self._resources[name] = self._resources.get(name, 0) + amount


def within_quotas(
    placements: Sequence[Placement], requests: _Requests, policy: PoolPolicy
) -> list[Placement]:
    """Return the placements within the quotas of their user, project and domain, in order.

    `policy`: of the pool of all placements.
    """
    if not placements or not lock_quotas(item.job_id for item in placements):
        return list(placements)
    tenants = find_tenants(item.job_id for item in placements)
    scopes = {job_id: scopes_of(*tenant) for job_id, tenant in tenants.items()}
    found = load_quotas({scope for listed in scopes.values() for scope in listed})
    left = {quota.scope: _RemainingQuota(quota, policy) for quota in found}
    kept = []
    for item in placements:
        request = item.resources or requests[item.group_id]
        bound = [left[scope] for scope in scopes[item.job_id] if scope in left]
        if all(quota.admits(request, item.job_id) for quota in bound):
            kept.append(item)
            for quota in bound:
                quota.book(request, item.job_id)
    return kept
