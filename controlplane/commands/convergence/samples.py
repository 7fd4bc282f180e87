"""Rule 13: every 15 seconds, write the figures of each pool for the operators' pages."""

from collections import Counter
from collections.abc import Iterable, Mapping

from controlplane.commands.convergence.runner import RuleContext
from controlplane.commands.state.cursors import save_cursor
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.contract.states import TaskState as S
from controlplane.domain.state.states import Band
from controlplane.models import PoolSample
from controlplane.queries.convergence.cursors import load_cursor
from controlplane.queries.convergence.samples import (
    FAILED,
    KILLED,
    PoolChanges,
    count_changes,
    limit_range,
    load_history_end,
    load_resources,
    load_wanting,
)
from controlplane.queries.sql import execute
from controlplane.queries.work_counts import count_held, count_waiting

NAME = "samples"

MAX_CHANGES = 200_000
"""Rows of the history that one sample counts: some two seconds. The next samples count the rest."""


def take_samples(context: RuleContext) -> Mapping[str, int]:
    """Write a sample of each pool. A sample is no change: its tick is not recorded for it."""
    waiting, held = count_waiting(), count_held()
    resources, wanting = load_resources(), load_wanting(context.now)

    def write() -> None:
        changes = _count_next_changes(context)
        PoolSample.objects.bulk_create(
            PoolSample(
                at=context.now,
                pool_id=pool_id,
                waiting=_by_band((w.band, w.waiting) for w in waiting if w.pool_id == pool_id),
                stuck=_by_band((w.band, w.stuck) for w in waiting if w.pool_id == pool_id),
                held=_by_band((h.band, h.number) for h in held if h.pool_id == pool_id),
                used=amounts.used,
                capacity=amounts.capacity,
                wanted=dict(Counter(amounts.used) + Counter(wanting.get(pool_id, {}))),
                **_counts(changes.get(pool_id, PoolChanges())),
            )
            for pool_id, amounts in resources.items()
        )

    run_in_transaction(write)
    return {}


def _count_next_changes(context: RuleContext) -> Mapping[int, PoolChanges]:
    """Count each row of the history once: those behind the last counted one.

    The end of the range is the end that the history had at the sample before. Ids are not in the
    order of commits, and since then the transactions with lower ids have ended.
    """
    execute("SELECT 1 FROM controlplane_walk WHERE name = %s FOR NO KEY UPDATE", [NAME])
    end, cursor = load_history_end(), load_cursor(NAME).after
    after, before = map(int, cursor.split(":")) if cursor else (end, end)
    until = limit_range(after, before, MAX_CHANGES)
    changes = count_changes(after, until)
    # The newest rows may have been deleted.
    save_cursor(NAME, after=f"{until}:{max(end, before)}", now=context.now)
    return changes


def _by_band(counts: Iterable[tuple[int, int]]) -> list[int]:
    found = [0] * len(Band)
    for band, number in counts:
        found[band - 1] += number
    return found


def _counts(changes: PoolChanges) -> dict[str, object]:
    return {
        "started": changes.count(S.RUNNING),
        "latencies": changes.latencies,
        "succeeded": changes.count(S.SUCCEEDED),
        "failed": changes.count(*FAILED),
        "killed": changes.count(*KILLED),
        "failures": changes.failures,
    }
