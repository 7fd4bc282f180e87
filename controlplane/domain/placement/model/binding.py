"""Which quotas may limit a pass; pure.

Each scope of a new installation has a default quota that is far from used up. A quota without
effect would still cost time: passes with quotas check each turn, and lock the quotas.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from controlplane.domain.placement.model.snapshot import QuotaReservation, ShapeFacts
from controlplane.domain.scopes import Quota, Scope, ScopeLimits


def count_waiting_by_scope(
    shapes: Iterable[ShapeFacts], reserved_elsewhere: Iterable[QuotaReservation] = ()
) -> Mapping[Scope, int]:
    """Return the number of waiting tasks of each scope of the shapes, in any pool if nominated."""
    waiting = Counter[Scope]()
    for shape in shapes:
        for scope in shape.scopes():
            waiting[scope] += shape.count
    for reservation in reserved_elsewhere:
        for scope in reservation.scopes():
            if scope in waiting:
                waiting[scope] += reservation.count
    return waiting


def binding_quotas(quotas: Iterable[Quota], waiting: Mapping[Scope, int]) -> tuple[Quota, ...]:
    """Return the quotas that may limit the placement or the order of `waiting` tasks."""
    return tuple(
        quota
        for quota in quotas
        if may_bind(quota.limits, running=quota.running_tasks, waiting=waiting[quota.scope])
    )


def may_bind(limits: ScopeLimits, *, running: int, waiting: int) -> bool:
    """Return whether limits may matter if at most `running` tasks of the scope hold capacity."""
    if limits.resources or limits.running_jobs is not None or limits.pending_tasks is not None:
        return True
    if limits.weight != 1.0:
        return True
    most = limits.running_tasks
    return most is not None and running + waiting > most
