"""What ticks note about themselves: metrics, admin and the other ticks read it."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from controlplane.outbox.wakes import take_wake
from controlplane.queries.sql import execute

__all__ = ["claim_turn", "leave_mark", "note_run", "take_wake"]


def claim_turn(name: str, *, now: datetime, interval: float) -> bool:
    """Whether the caller may run the tick: nobody began it less than half an interval ago.

    So two beats are harmless, and of two workers one runs. A run that died is taken over at once.
    """
    return bool(
        execute(
            """
            INSERT INTO controlplane_tickstate AS t (name, mark, started_at, counts)
            VALUES (%(name)s, 0, %(now)s, '{}')
            ON CONFLICT (name) DO UPDATE SET started_at = EXCLUDED.started_at
            WHERE t.started_at IS NULL
               OR t.started_at <= %(now)s - make_interval(secs => %(half)s)
            """,
            {"name": name, "now": now, "half": interval / 2},
        )
    )


def leave_mark(name: str) -> None:
    """A wake found the tick busy: whoever holds it runs once more."""
    execute(
        """
        INSERT INTO controlplane_tickstate (name, mark, counts) VALUES (%s, 1, '{}')
        ON CONFLICT (name) DO UPDATE SET mark = controlplane_tickstate.mark + 1
        """,
        [name],
    )


def note_run(
    name: str,
    *,
    started_at: datetime,
    finished_at: datetime,
    counts: Mapping[str, Any],
    covered_at: datetime | None = None,
    hold_until: datetime | None = None,
) -> None:
    """The tick ran. `covered_at`: when it began, if it looked at everything that waits."""
    execute(
        """
        INSERT INTO controlplane_tickstate
            (name, mark, started_at, finished_at, covered_at, hold_until, counts)
        VALUES (%(name)s, 0, %(started)s, %(finished)s, %(covered)s, %(hold)s, %(counts)s)
        ON CONFLICT (name) DO UPDATE SET
            started_at = EXCLUDED.started_at, finished_at = EXCLUDED.finished_at,
            covered_at = COALESCE(EXCLUDED.covered_at, controlplane_tickstate.covered_at),
            hold_until = EXCLUDED.hold_until, counts = EXCLUDED.counts
        """,
        {
            "name": name,
            "started": started_at,
            "finished": finished_at,
            "covered": covered_at,
            "hold": hold_until,
            "counts": json.dumps(dict(counts)),
        },
    )
