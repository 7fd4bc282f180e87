"""Pools as everybody sees them."""

from typing import Any

from controlplane.domain.errors import NotFound
from controlplane.models import Pool


def list_pools(*, after: str | None, limit: int) -> list[dict[str, Any]]:
    """At most `limit` pools behind the name `after`, by name."""
    found = Pool.objects.filter(name__gt=after or "").order_by("name")[:limit]
    return [_document(pool) for pool in found]


def get_pool(name: str) -> dict[str, Any]:
    """One pool. Raises NotFound."""
    pool = Pool.objects.filter(name=name).first()
    if pool is None:
        raise NotFound(f"there is no pool {name}")
    return _document(pool)


def _document(pool: Pool) -> dict[str, Any]:
    """What is the same for every pool is stated as it is, though it cannot be changed yet."""
    return {
        "name": pool.name,
        "sequencer": pool.sequencer,
        "selector": pool.selector,
        "validators": pool.validators,
        "strict_fifo": pool.strict_fifo,
        "preemption": pool.preemption,
        "pending_timeout_seconds": pool.pending_timeout_seconds,
        "pull_timeout_seconds": pool.pull_timeout_seconds,
        "create_timeout_seconds": pool.create_timeout_seconds,
        "max_building_per_cell": pool.max_building_per_cell,
        "starvation_seconds": pool.starvation_seconds,
        "mass_loss": None,
        "tokens": pool.tokens,
        "allowed_mounts": [],
        "privileged_allowed": False,
    }
