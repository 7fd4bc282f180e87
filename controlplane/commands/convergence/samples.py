"""Rule 13: write the figures of pools every 15 seconds and of cells every minute, for pages."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from controlplane.commands.convergence.runner import RuleContext
from controlplane.contract.states import TaskState as S
from controlplane.domain.state.states import Band, CellState
from controlplane.queries.cells.capacity import effective_reservation, load_reserved
from controlplane.queries.cells.samples import PARTS, SAMPLED
from controlplane.queries.convergence.samples import (
    FAILED,
    KILLED,
    CellResources,
    PoolChanges,
    SampleFacts,
    count_changes,
    limit_range,
    load_cell_resources,
    load_sample_facts,
    load_wanting,
)
from controlplane.queries.sql import encoded, execute
from controlplane.queries.work_counts import count_held, count_waiting

NAME = "samples"
_MAX_FIGURE = 2**31 - 1

MAX_CHANGES = 200_000
"""Rows of the history that one sample counts: some two seconds. The next samples count the rest."""


_WRITE = """
WITH turn AS (
    INSERT INTO controlplane_walk AS w (name, after, scanned_at, repaired)
    VALUES (%(name)s, %(after)s, %(now)s, 0)
    ON CONFLICT (name) DO UPDATE SET after = EXCLUDED.after, scanned_at = EXCLUDED.scanned_at
    WHERE w.after = %(cursor)s AND w.scanned_at = %(sampled_at)s
    RETURNING 1
)
INSERT INTO controlplane_poolsample
    (at, pool_id, waiting, stuck, held, started, latencies, succeeded, failed, killed, failures,
     used, capacity, wanted)
SELECT %(now)s, i.* FROM turn, jsonb_to_recordset(%(samples)s::jsonb) AS i (
    pool_id bigint, waiting integer[], stuck integer[], held integer[], started integer,
    latencies integer[], succeeded integer, failed integer, killed integer, failures jsonb,
    used jsonb, capacity jsonb, wanted jsonb)
"""


def take_samples(context: RuleContext) -> Mapping[str, int]:
    """Write samples of pools and cells. A sample is no change: its tick is not recorded for it.

    Those of pools are written with the cursor of the history, unless another process has moved it
    meanwhile and thus taken its own sample.
    """
    minute = context.now.replace(second=0, microsecond=0)
    facts = load_sample_facts(NAME, minute)
    waiting = count_waiting() if facts.has_waiting else []
    held = count_held() if facts.has_held else []
    cells, resources = load_cell_resources(with_usage=facts.has_held)
    wanting = load_wanting(context.now) if facts.has_waiting else {}
    if not facts.has_cells:
        _sample_cells(cells, minute, context.now, has_waiting=facts.has_waiting)
    cursor, changes = _count_next_changes(facts)
    samples = [
        {
            "pool_id": pool_id,
            "waiting": _by_band((w.band, w.waiting) for w in waiting if w.pool_id == pool_id),
            "stuck": _by_band((w.band, w.stuck) for w in waiting if w.pool_id == pool_id),
            "held": _by_band((h.band, h.number) for h in held if h.pool_id == pool_id),
            "used": amounts.used,
            "capacity": amounts.capacity,
            "wanted": dict(Counter(amounts.used) + Counter(wanting.get(pool_id, {}))),
            **_counts(changes.get(pool_id, PoolChanges())),
        }
        for pool_id, amounts in resources.items()
    ]
    parameters = {
        "name": NAME,
        "after": cursor,
        "cursor": facts.cursor,
        "sampled_at": facts.sampled_at,
        "now": context.now,
        "samples": encoded(samples),
    }
    execute(_WRITE, parameters)
    return {}


def _sample_cells(
    cells: Sequence[CellResources], minute: datetime, now: datetime, *, has_waiting: bool
) -> None:
    """Write a row for each cell that is not LOST with one statement, once in a minute."""
    sampled = [cell for cell in cells if cell.state is not CellState.LOST]
    if not sampled:
        return
    reserved = load_reserved([cell.id for cell in sampled], now=now) if has_waiting else {}
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


def _count_next_changes(facts: SampleFacts) -> tuple[str, Mapping[int, PoolChanges]]:
    """Count each row of the history once: those behind the last counted one.

    Return the next cursor, too. The end of the range is the end that the history had at the sample
    before. Ids are not in the order of commits, and since then the transactions with lower ids have
    ended.
    """
    end = facts.history_end
    after, before = map(int, facts.cursor.split(":")) if facts.cursor else (end, end)
    is_idle = after == before
    until = before if is_idle else limit_range(after, before, MAX_CHANGES)
    changes = {} if is_idle else count_changes(after, until)
    # The newest rows may have been deleted.
    return f"{until}:{max(end, before)}", changes


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
