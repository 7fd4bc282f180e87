"""Which quotas may limit a pass; pure.

Each scope of a new installation has a default quota that is far from used up. A quota without
effect would still cost time: passes with quotas check each turn, and lock the quotas.
"""

from collections import Counter
from collections.abc import Iterable

from controlplane.domain.placement.model.snapshot import ShapeFacts
from controlplane.domain.scopes import Quota, Scope


def binding_quotas(quotas: Iterable[Quota], shapes: Iterable[ShapeFacts]) -> tuple[Quota, ...]:
    """Return the quotas that may limit the placement or the order of tasks of `shapes`."""
    waiting = Counter[Scope]()
    for shape in shapes:
        for scope in shape.scopes():
            waiting[scope] += shape.count
    return tuple(quota for quota in quotas if _may_bind(quota, waiting[quota.scope]))


def _may_bind(quota: Quota, waiting: int) -> bool:
    limits = quota.limits
    if limits.resources or limits.running_jobs is not None or limits.pending_tasks is not None:
        return True
    if limits.weight != 1.0:
        return True
    most = limits.running_tasks
    return most is not None and quota.running_tasks + waiting > most
