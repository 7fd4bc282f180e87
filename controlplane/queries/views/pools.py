"""Load pools for the API and the admin: policy, usage, and reasons of waiting tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from controlplane.contract.states import TaskState
from controlplane.domain.errors import NotFound
from controlplane.domain.placement.plugins.validators.start import (
    WAITING_FOR_DEPENDENCY,
    WAITING_FOR_START_TIME,
)
from controlplane.domain.placement.reasons import pending
from controlplane.domain.placement.reasons.explain import QUEUE_POSITION
from controlplane.domain.state.states import CellState
from controlplane.models import Pool
from controlplane.queries.cells.capacity import load_usage
from controlplane.queries.holds import IS_HELD
from controlplane.queries.sql import decoded, rows

# The codes in the order of `domain.placement.reasons.pending`. Tasks whose last attempt is not
# released are excluded: they still hold capacity.
_WAITING = f"""
SELECT pool_id, code, sum(tasks)::bigint,
       (array_agg(reason ->> 'text' ORDER BY tasks DESC) FILTER (WHERE reason ->> 'code' = code))[1]
FROM (
    SELECT j.pool_id, w.tasks, why.reason, CASE
        WHEN {IS_HELD} THEN '{pending.HELD}'
        WHEN w.backs_off THEN '{pending.BACKING_OFF}'
        WHEN j.waits_for_jobs THEN '{pending.WAITING_FOR_JOB}'
        WHEN g.startable_at IS NULL THEN '{WAITING_FOR_DEPENDENCY}'
        WHEN j.is_requeuing THEN '{pending.WAITING_FOR_GANG_TO_LEAVE}'
        WHEN g.startable_at > %(now)s THEN '{WAITING_FOR_START_TIME}'
        ELSE coalesce(why.reason ->> 'code', '{QUEUE_POSITION}') END AS code
    FROM (
        SELECT group_id, shape_id, coalesce(not_before > %(now)s, false) AS backs_off,
               count(*) AS tasks
        FROM controlplane_task WHERE state = %(pending)s AND NOT attempt_open GROUP BY 1, 2, 3
    ) w
    JOIN controlplane_taskgroup g ON g.id = w.group_id
    JOIN controlplane_job j ON j.id = g.job_id
    LEFT JOIN controlplane_shape s ON s.id = w.shape_id
    CROSS JOIN LATERAL (SELECT coalesce(s.pending_reason, g.pending_reason) AS reason) why
    WHERE j.pool_id = ANY(%(pools)s)
) found
GROUP BY 1, 2 ORDER BY 1, 3 DESC, 2
"""


FIELDS = (
    "name",
    "sequencer",
    "selector",
    "validators",
    "strict_fifo",
    "preemption",
    "pending_timeout_seconds",
    "pull_timeout_seconds",
    "create_timeout_seconds",
    "max_building_per_cell",
    "starvation_seconds",
    "mass_loss",
    "loss_held_at",
    "tokens",
    "cells_may_join",
    "allowed_mounts",
    "privileged_allowed",
    "exec_allowed",
    "allowed_capabilities",
    "input_networks",
    "job_limits",
)
"""The fields of a pool's document."""


def list_pools(*, after: str | None, limit: int) -> list[dict[str, Any]]:
    """Return at most `limit` pools after the name `after`, by name."""
    found = Pool.objects.filter(name__gt=after or "").order_by("name")
    return list(found.values(*FIELDS)[:limit])


def get_pool(name: str) -> dict[str, Any]:
    """Return one pool. Raise NotFound."""
    pool = Pool.objects.filter(name=name).values(*FIELDS).first()
    if pool is None:
        raise NotFound(f"there is no pool {name}")
    return pool


@dataclass(frozen=True, slots=True)
class PendingSummary:
    """The number of tasks with one code of reason. `text`: the most frequent one, or empty."""

    code: str
    tasks: int
    text: str


@dataclass(slots=True)
class PoolUse:
    """The usage of a pool. `capacity`: of READY cells; `held`: by unreleased attempts on all."""

    cells: dict[str, int] = field(default_factory=dict)
    capacity: dict[str, int] = field(default_factory=dict)
    held: dict[str, int] = field(default_factory=dict)
    waiting: list[PendingSummary] = field(default_factory=list)

    @property
    def waiting_tasks(self) -> int:
        """Return the number of waiting tasks."""
        return sum(waits.tasks for waits in self.waiting)


def load_pool_uses(pool_ids: Sequence[int], *, now: datetime) -> dict[int, PoolUse]:
    """Return the usage of pools, by three statements."""
    uses = {pool_id: PoolUse() for pool_id in pool_ids}
    cells = rows(
        "SELECT id, pool_id, state, capacity FROM controlplane_cell WHERE pool_id = ANY(%s)",
        [list(uses)],
    )
    held = load_usage([cell_id for cell_id, *_ in cells])
    for cell_id, pool_id, state, capacity in cells:
        use = uses[pool_id]
        use.cells[state] = use.cells.get(state, 0) + 1
        _add(use.held, held.get(cell_id, {}))
        if state == CellState.READY:
            _add(use.capacity, decoded(capacity))
    parameters = {"pools": list(uses), "now": now, "pending": int(TaskState.PENDING)}
    for pool_id, code, tasks, text in rows(_WAITING, parameters):
        uses[pool_id].waiting.append(PendingSummary(code, tasks, text or ""))
    return uses


def _add(total: dict[str, int], amounts: Mapping[str, int]) -> None:
    for name, amount in amounts.items():
        total[name] = total.get(name, 0) + amount
