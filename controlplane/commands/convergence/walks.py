"""Where walks over all there is go on, and what those of rule 12 had to put right."""

from datetime import datetime

from controlplane.commands.state.tick_alerts import tell_repair, tell_sound
from controlplane.queries.convergence.repairs import load_way
from controlplane.queries.sql import execute


def note_repair(name: str, counts: dict[str, int], *, now: datetime) -> None:
    """Something was put right, in the transaction of the caller: who dies behind it has told."""
    tell_repair(name, counts, now=now)
    execute(
        """
        INSERT INTO controlplane_walk (name, after, looked_at, repaired)
        VALUES (%s, '', '-infinity', %s)
        ON CONFLICT (name) DO UPDATE SET repaired = controlplane_walk.repaired + EXCLUDED.repaired
        """,
        [name, sum(counts.values())],
    )


def note_place(name: str, *, reached: str, now: datetime) -> None:
    """Where a look left off that repairs nothing."""
    execute(
        """
        INSERT INTO controlplane_walk (name, after, looked_at, repaired) VALUES (%s, %s, %s, 0)
        ON CONFLICT (name) DO UPDATE SET after = EXCLUDED.after, looked_at = EXCLUDED.looked_at
        """,
        [name, reached, now],
    )


def note_walk(name: str, *, reached: str, now: datetime) -> None:
    """Where the walk goes on; after a round in which nothing was wrong its alert is over."""
    if not reached and not load_way(name).repaired:
        tell_sound(name, now=now)
    execute(
        """
        INSERT INTO controlplane_walk AS w (name, after, looked_at, repaired)
        VALUES (%(name)s, %(reached)s, %(now)s, 0)
        ON CONFLICT (name) DO UPDATE SET after = EXCLUDED.after, looked_at = EXCLUDED.looked_at,
               repaired = CASE WHEN EXCLUDED.after = '' THEN 0 ELSE w.repaired END
        """,
        {"name": name, "reached": reached, "now": now},
    )
