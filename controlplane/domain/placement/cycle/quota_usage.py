"""Usage of quotas, tokens, concurrency keys and owner shares at each point of a pass."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy

import numpy as np

from controlplane.domain.placement.cycle.key_usage import KeyAccounting
from controlplane.domain.placement.model.interfaces import QuotaState, Vector
from controlplane.domain.placement.model.snapshot import PoolSnapshot, ShapeFacts
from controlplane.domain.scopes import Quota, Scope


class _QuotaAccount:
    """A quota with its current usage."""

    def __init__(self, quota: Quota) -> None:
        self.quota = quota
        self.resources = dict(quota.resources)
        self.tasks = quota.running_tasks
        self.jobs = set(quota.jobs)
        self.leaving_jobs = set(quota.leaving_jobs)
        self.awaited_jobs = Counter[int]()
        self.waiting = 0

    def is_running(self, job_id: int) -> bool:
        return job_id in self.jobs and job_id not in self.leaving_jobs

    def is_counted(self, job_id: int) -> bool:
        return job_id in self.awaited_jobs or self.is_running(job_id)

    def state(self, job_id: int | None = None) -> QuotaState:
        running = self.jobs | self.awaited_jobs.keys()
        leaving = self.leaving_jobs - self.awaited_jobs.keys()
        if job_id is not None and not self.is_running(job_id):
            running.discard(job_id)
        return QuotaState(
            kind=self.quota.scope.kind,
            title=self.quota.title,
            limits=self.quota.limits,
            resources=self.resources,
            running_tasks=self.tasks,
            running_jobs=len(running),
            leaving_jobs=len(leaving),
            waiting=self.waiting,
            is_default=self.quota.is_default,
        )


class QuotaAccounting:
    """Account of the quotas, tokens, concurrency keys and shares that placements of a pass use.

    Nominated capacity is charged like placed capacity; otherwise lower bands would use capacity
    that was freed for the nominee.
    """

    def __init__(self, snapshot: PoolSnapshot) -> None:
        self._accounts = {quota.scope: _QuotaAccount(quota) for quota in snapshot.quotas}
        self._tokens = dict(snapshot.policy.tokens)
        self._tokens_used = dict(snapshot.tokens_used)
        self.keys = KeyAccounting(snapshot.key_usage)
        self._owners = {key: dict(used) for key, used in snapshot.owner_usage.items()}
        self._projects = {key: dict(used) for key, used in snapshot.project_usage.items()}
        self._kept: dict[int, tuple[ShapeFacts, int, int]] = {}
        self._reserved_elsewhere = sorted(
            snapshot.reserved_elsewhere, key=lambda item: item.band, reverse=True
        )

    def limits_any(self, shapes: Iterable[ShapeFacts]) -> bool:
        """Return whether there are quotas or tokens, or one of the shapes has a concurrency key."""
        return bool(self._accounts or self._tokens) or any(shape.concurrency for shape in shapes)

    def save(self) -> "QuotaAccounting":
        """Return a copy of the usage for `restore`."""
        return deepcopy(self, {id(shape): shape for shape, *_ in self._kept.values()})

    def restore(self, saved: "QuotaAccounting") -> None:
        """Restore the saved usage."""
        self.__dict__.update(saved.__dict__)

    def accounts_of(self, shape: ShapeFacts) -> list[_QuotaAccount]:
        """Return the quotas that the shape's tasks count against."""
        if not self._accounts:
            return []
        found = (self._accounts.get(scope) for scope in shape.scopes())
        return [account for account in found if account is not None]

    def quotas_of(self, shape: ShapeFacts, job_id: int | None = None) -> list[QuotaState]:
        """Return these quotas with current usage for that job, which does not block itself."""
        return [account.state(job_id) for account in self.accounts_of(shape)]

    def states(self) -> list[tuple[Scope, QuotaState]]:
        """Return all quotas with current usage."""
        return [(scope, account.state()) for scope, account in self._accounts.items()]

    def tokens_left(self) -> dict[str, int]:
        """Return the rest of each token; negative after its limit was lowered."""
        return {name: most - self._tokens_used.get(name, 0) for name, most in self._tokens.items()}

    def limit_of(self, token: str) -> int:
        """Return the limit of a token."""
        return self._tokens[token]

    def is_bound_by_jobs(self, shape: ShapeFacts) -> bool:
        """Return whether a limit of running jobs applies to the shape."""
        accounts = self.accounts_of(shape)
        return any(account.quota.limits.running_jobs is not None for account in accounts)

    def is_running(self, shape: ShapeFacts, job_id: int) -> bool:
        """Return whether the job has attempts that are not terminating.

        A job with terminating attempts only is new: otherwise it would retake the capacity from
        which it was evicted before the preemptor. A job with nominations only is new as well: the
        limit may have been lowered since they were made.
        """
        return any(account.is_running(job_id) for account in self.accounts_of(shape))

    def is_counted(self, shape: ShapeFacts, job_id: int) -> bool:
        """Return whether the job is running or nominated, so that the quotas count it already."""
        return any(account.is_counted(job_id) for account in self.accounts_of(shape))

    def tokens_for(self, shape: ShapeFacts) -> int | None:
        """Return for how many tasks of the shape the tokens suffice; None: it needs none."""
        requested = [name for name in shape.resources if name in self._tokens]
        if not requested:
            return None
        return min(self._left(name) // shape.resources[name] for name in requested)

    def missing_tokens(self, shape: ShapeFacts, tasks: int) -> dict[str, tuple[int, int, int]]:
        """Return (used, requested, limit) of each token that `tasks` tasks lack."""
        return {
            name: (self._tokens_used.get(name, 0), amount * tasks, self._tokens[name])
            for name, amount in shape.resources.items()
            if name in self._tokens and amount * tasks > self._left(name)
        }

    def _left(self, name: str) -> int:
        return max(self._tokens[name] - self._tokens_used.get(name, 0), 0)

    def book(self, shape: ShapeFacts, job_ids: Iterable[int], tasks: int) -> None:
        """Charge `tasks` tasks of the shape, of these jobs; negative: refund them."""
        for account in self.accounts_of(shape):
            if account.quota.limits.running_jobs is not None and tasks > 0:
                account.jobs.update(job_ids)
                account.leaving_jobs.difference_update(job_ids)
        self._count(shape, tasks)
        for usage, key in (
            (self._owners, shape.owner_id),
            (self._projects, shape.project_id),
        ):
            if key in usage or tasks > 0:
                _add(usage.setdefault(key, {}), shape.resources, tasks)

    def keep(self, row: int, shape: ShapeFacts, job_id: int, tasks: int) -> None:
        """Charge the nominated `tasks` tasks of the row, until `let_go`."""
        self.let_go(row)
        if not self.limits_any([shape]):
            return
        self._kept[row] = shape, job_id, tasks
        for account in self.accounts_of(shape):
            account.awaited_jobs[job_id] += 1
        self._count(shape, tasks)

    def let_go(self, row: int) -> None:
        """Refund the nominated tasks of the row, if any."""
        if row not in self._kept:
            return
        shape, job_id, tasks = self._kept.pop(row)
        for account in self.accounts_of(shape):
            account.awaited_jobs[job_id] -= 1
            if not account.awaited_jobs[job_id]:
                del account.awaited_jobs[job_id]
        self._count(shape, -tasks)

    def charge_reservations_elsewhere(self, band: int) -> None:
        """Charge what other pools reserve for tasks of `band` and of more important bands, once.

        Otherwise this pool would use the quota that evictions in another pool freed.
        """
        while self._reserved_elsewhere and self._reserved_elsewhere[-1].band <= band:
            item = self._reserved_elsewhere.pop()
            for scope in item.scopes():
                if scope in self._accounts:
                    account = self._accounts[scope]
                    account.awaited_jobs[item.job_id] += 1
                    account.tasks += item.count
                    _add(account.resources, item.resources, item.count)

    def _count(self, shape: ShapeFacts, tasks: int) -> None:
        self.keys.book(shape.concurrency, tasks)
        for account in self.accounts_of(shape):
            account.tasks += tasks
            _add(account.resources, shape.resources, tasks)
        for name, amount in shape.resources.items():
            if name in self._tokens:
                self._tokens_used[name] = self._tokens_used.get(name, 0) + amount * tasks

    def note_waiting(self, shape: ShapeFacts, tasks: int) -> None:
        """Count `tasks` unplaced tasks of the shape as pending."""
        for account in self.accounts_of(shape):
            account.waiting += tasks

    def held_by_owner(self, owner: int, names: Sequence[str]) -> Vector:
        """Return the amounts that an owner holds in the pool, by resource."""
        return _amounts(self._owners.get(owner, {}), names)

    def held_by_project(self, project: int, names: Sequence[str]) -> Vector:
        """Return the amounts that a project holds in the pool, by resource."""
        return _amounts(self._projects.get(project, {}), names)

    def weight_of(self, scope: Scope) -> float:
        """Return the weight of the scope's quota, by default 1."""
        account = self._accounts.get(scope)
        return account.quota.limits.weight if account is not None else 1.0


def _amounts(held: Mapping[str, int], names: Sequence[str]) -> Vector:
    return np.array([held.get(name, 0) for name in names], dtype=np.int64)


def _add(held: dict[str, int], amounts: Mapping[str, int], tasks: int) -> None:
    for name, amount in amounts.items():
        held[name] = held.get(name, 0) + amount * tasks
