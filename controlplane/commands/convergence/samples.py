"""Rule 13: write the figures of pools every 15 seconds and of cells every minute, for pages."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from controlplane.commands.convergence.runner import RuleContext
from controlplane.commands.state.cursors import save_cursor
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.contract.states import TaskState as S
from controlplane.domain.state.states import Band, CellState
from controlplane.models import PoolSample
from controlplane.queries.cells.capacity import effective_reservation, load_reserved
from controlplane.queries.cells.samples import PARTS, SAMPLED
from controlplane.queries.convergence.cursors import load_cursor
from controlplane.queries.convergence.samples import (
    FAILED,
    KILLED,
    CellResources,
    PoolChanges,
    count_changes,
    is_sampled,
    limit_range,
    load_cell_resources,
    load_history_end,
    load_wanting,
    sum_by_pool,
)
from controlplane.queries.sql import execute
from controlplane.queries.work_counts import count_held, count_waiting

NAME = "samples"
_MAX_FIGURE = 2**31 - 1

MAX_CHANGES = 200_000
"""Rows of the history that one sample counts: some two seconds. The next samples count the rest."""


def take_samples(context: RuleContext) -> Mapping[str, int]:
    """Write samples of pools and cells. A sample is no change: its tick is not recorded for it."""
    waiting, held = count_waiting(), count_held()
    cells = load_cell_resources()
    resources = sum_by_pool(cells)
    wanting = load_wanting(context.now)

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
        _sample_cells(cells, context.now)

    run_in_transaction(write)
    return {}


def _sample_cells(cells: Sequence[CellResources], now: datetime) -> None:
    """Write a row for each cell that is not LOST with one statement, once in a minute."""
    minute = now.replace(second=0, microsecond=0)
    sampled = [cell for cell in cells if cell.state is not CellState.LOST]
    if not sampled or is_sampled(minute):
        return
    reserved = load_reserved([cell.id for cell in sampled], now=now)
    columns: dict[str, list[int]] = {"cell_id": [cell.id for cell in sampled]}
    for name in SAMPLED:
        figures = [_figures(cell, reserved.get(cell.id, {}), name) for cell in sampled]
        for part, values in zip(PARTS, zip(*figures, strict=True), strict=True):
            columns[f"{name}_{part}"] = list(values)
    names = ", ".join(columns)
    arrays = ", ".join(
        f"%({name})s::{'bigint' if name == 'cell_id' else 'integer'}[]" for name in columns
    )
    execute(
        f"""
        INSERT INTO controlplane_cellsample (at, {names})
        SELECT %(at)s, i.* FROM unnest({arrays}) AS i ({names}) ON CONFLICT DO NOTHING
        """,
        {"at": minute, **columns},
    )


def _figures(cell: CellResources, reserved: Mapping[str, int], name: str) -> tuple[int, ...]:
    """Return the used, the reserved and the whole amount of a resource."""
    used, capacity = cell.used.get(name, 0), cell.capacity.get(name, 0)
    waiting = effective_reservation(reserved.get(name, 0), used, capacity)
    return tuple(min(amount, _MAX_FIGURE) for amount in (used, waiting, capacity))


def _count_next_changes(context: RuleContext) -> Mapping[int, PoolChanges]:
    """Count each row of the history once: those behind the last counted one.

    The end of the range is the end that the history had at the sample before. Ids are not in the
    order of commits, and since then the transactions with lower ids have ended.
    """
    execute("SELECT 1 FROM controlplane_walk WHERE name = %s FOR NO KEY UPDATE", [NAME])
    end, cursor = load_history_end(), load_cursor(NAME).after
    after, before = map(int, cursor.split(":")) if cursor else (end, end)
    is_idle = after == before
    until = before if is_idle else limit_range(after, before, MAX_CHANGES)
    changes = {} if is_idle else count_changes(after, until)
    # The newest rows may have been deleted.
    save_cursor(NAME, after=f"{until}:{max(end, before)}", now=context.now)
    return changes


def _by_band(counts: Iterable[tuple[int, int]]) -> list[int]:
    """Return the sum of each band. Invalid rows have others."""
    found = dict.fromkeys(Band, 0)
    for band, number in counts:
        if band in found:
            found[Band(band)] += number
    return list(found.values())


def _counts(changes: PoolChanges) -> dict[str, object]:
    return {
        "started": changes.count(S.RUNNING),
        "latencies": changes.latencies,
        "succeeded": changes.count(S.SUCCEEDED),
        "failed": changes.count(*FAILED),
        "killed": changes.count(*KILLED),
        "failures": changes.failures,
    }
