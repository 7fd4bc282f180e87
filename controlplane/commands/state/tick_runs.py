"""Record runs of ticks, for metrics, the admin and the other ticks."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from controlplane.queries.sql import encoded, execute, rows
from controlplane.queries.ticks import TICK_COLUMNS, TickFacts, read_ticks

# A run that began later than this is kept even if it did nothing.
_KEPT_LAG_SECONDS = 5.0

# Earlier than any deadline.
_NEVER = datetime(1970, 1, 1, tzinfo=UTC)

_OVERTAKEN = "%(is_claimed)s AND t.started_at IS DISTINCT FROM EXCLUDED.started_at"


def claim_turn(name: str, *others: str, now: datetime, interval: float) -> list[TickFacts] | None:
    """Claim the tick's turn; return the last runs of it and of `others`, as `load_ticks` does.

    Return None if a run began less than half an interval ago. Thus a second beat is harmless, and
    only one of two workers runs. A start in the future, from before the clock was set back, does
    not count.
    """
    found = rows(
        f"""
        WITH claimed AS (
            INSERT INTO controlplane_tickstate AS t
                (name, mark, started_at, counts, phases, lag_seconds)
            VALUES (%(name)s, 0, %(now)s, '{{}}', '{{}}', 0)
            ON CONFLICT (name) DO UPDATE SET started_at = EXCLUDED.started_at
            WHERE t.started_at IS NULL
               OR t.started_at <= %(now)s - make_interval(secs => %(half)s)
               OR t.started_at > %(now)s + make_interval(secs => %(half)s)
            RETURNING 1
        )
        SELECT n.name, {TICK_COLUMNS} FROM claimed, unnest(%(names)s::text[]) AS n(name)
        LEFT JOIN controlplane_tickstate t ON t.name = n.name
        """,
        {"name": name, "now": now, "half": interval / 2, "names": [name, *others]},
    )
    return read_ticks(found, [name, *others]) if found else None


def leave_mark(name: str) -> None:
    """Record that a wake found the tick busy, so that its holder runs once more."""
    execute(
        """
        INSERT INTO controlplane_tickstate (name, mark, counts, phases, lag_seconds)
        VALUES (%s, 1, '{}', '{}', 0)
        ON CONFLICT (name) DO UPDATE SET mark = controlplane_tickstate.mark + 1
        """,
        [name],
    )


def note_hold(name: str, *, started_at: datetime, hold_until: datetime) -> None:
    """Suspend waiting rules until `hold_until`, in the turn claimed at `started_at` and later ones.

    The hold remains if the process dies before it records its run.
    """
    execute(
        "UPDATE controlplane_tickstate SET hold_until = %s WHERE name = %s AND started_at = %s",
        [hold_until, name, started_at],
    )


def note_run(
    name: str,
    *,
    started_at: datetime,
    finished_at: datetime,
    counts: Mapping[str, Any],
    phases: Mapping[str, int] | None = None,
    lag_seconds: float = 0.0,
    covered_at: datetime | None = None,
    uncovered: Collection[int] | None = None,
    hold_until: datetime | None = None,
    is_claimed: bool = False,
) -> None:
    """Record a run of the tick; keep a run with changes, or a late one, for a day.

    `covered_at`: its start, if it considered all pending tasks; `uncovered`: the pools in which it
    did not, each of which keeps the time of its last complete pass. `phases`: milliseconds of each.
    `is_claimed`: by `claim_turn`; then the start and hold of a later claim are kept.
    """
    execute(
        f"""
        WITH kept AS (
            INSERT INTO controlplane_tickrun
                (name, started_at, finished_at, counts, phases, lag_seconds)
            SELECT %(name)s, %(started)s, %(finished)s, %(counts)s, %(phases)s, %(lag)s
            WHERE %(is_kept)s
        ), coverage AS (
            UPDATE controlplane_pool p SET uncovered_since = CASE
                WHEN p.id = ANY(%(uncovered)s::bigint[])
                THEN COALESCE((SELECT covered_at FROM controlplane_tickstate
                               WHERE name = %(name)s), %(never)s) END
            WHERE (p.id = ANY(%(uncovered)s::bigint[])) = (p.uncovered_since IS NULL)
        )
        INSERT INTO controlplane_tickstate AS t
            (name, mark, started_at, finished_at, covered_at, hold_until, counts, phases,
             lag_seconds)
        VALUES (%(name)s, 0, %(started)s, %(finished)s, %(covered)s, %(hold)s, %(counts)s,
                %(phases)s, %(lag)s)
        ON CONFLICT (name) DO UPDATE SET
            started_at = CASE WHEN {_OVERTAKEN} THEN t.started_at ELSE EXCLUDED.started_at END,
            hold_until = CASE WHEN {_OVERTAKEN} THEN t.hold_until ELSE EXCLUDED.hold_until END,
            finished_at = EXCLUDED.finished_at,
            covered_at = COALESCE(EXCLUDED.covered_at, t.covered_at), counts = EXCLUDED.counts,
            phases = EXCLUDED.phases, lag_seconds = EXCLUDED.lag_seconds
        """,
        {
            "name": name,
            "started": started_at,
            "finished": finished_at,
            "covered": covered_at,
            "hold": hold_until,
            "is_claimed": is_claimed,
            "counts": encoded(dict(counts)),
            "phases": encoded(dict(phases or {})),
            "lag": lag_seconds,
            "uncovered": None if uncovered is None else sorted(uncovered),
            "never": _NEVER,
            "is_kept": any(counts.values()) or lag_seconds > _KEPT_LAG_SECONDS,
        },
        prepare=True,
    )
