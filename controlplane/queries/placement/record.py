"""Load the complete input of a pass over a pool, to record and replay it."""

from datetime import datetime

from controlplane.domain.placement.cycle.plugin_guard import Faults
from controlplane.domain.placement.cycle.prefilter import screen
from controlplane.domain.placement.replay import PassRecord
from controlplane.models import Pool
from controlplane.queries.placement.pool_plugins import resolve
from controlplane.queries.placement.running_attempts import load_held
from controlplane.queries.placement.snapshot import (
    TASKS_PER_PASS,
    load_pass_facts,
    load_snapshot,
    load_waiting_shapes,
    policy_of,
)
from controlplane.queries.sql import execute


class NoSuchPool(LookupError):
    """There is no pool of that name."""


def load_record(name: str, *, now: datetime) -> PassRecord:
    """Return the record of the pool, read in one snapshot of the database. Raise NoSuchPool.

    This must be the first statement of a transaction.
    """
    execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
    pool = Pool.objects.filter(name=name).first()
    if pool is None:
        raise NoSuchPool(f"there is no pool {name}")
    policy = policy_of(pool)
    plugins = resolve(policy, Faults())
    by_owner = plugins.sequencer.uses_shares
    waiting = [found.shapes for found in load_waiting_shapes(now) if found.pool_id == pool.pk]
    snapshot = load_snapshot(
        pool.pk,
        pool.name,
        policy,
        [shape for shapes in waiting for shape in shapes],
        now=now,
        with_owners=by_owner,
    )
    facts = load_pass_facts(snapshot, screen(snapshot, plugins), by_owner=by_owner)
    held = load_held([cell.cell_id for cell in snapshot.cells])
    return PassRecord(
        snapshot=snapshot,
        facts=facts,
        limit=TASKS_PER_PASS,
        running=tuple(held.running),
        leaving=tuple(held.leaving),
        leaving_scopes=held.leaving_scopes,
    )
