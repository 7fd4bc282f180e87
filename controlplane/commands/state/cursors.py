"""Save where paged work continues, and count the repairs of a walk of rule 12."""

from datetime import datetime

from controlplane.commands.state.tick_alerts import clear_repair, raise_repair
from controlplane.queries.convergence.cursors import load_cursor
from controlplane.queries.sql import execute


def save_cursor(name: str, *, after: str, now: datetime) -> None:
    """Let the next page of the work `name` begin after the row `after`; if empty, at the front."""
    execute(
        """
        INSERT INTO controlplane_walk AS w (name, after, scanned_at, repaired)
        VALUES (%(name)s, %(after)s, %(now)s, 0)
        ON CONFLICT (name) DO UPDATE SET after = EXCLUDED.after, scanned_at = EXCLUDED.scanned_at,
               repaired = CASE WHEN EXCLUDED.after = '' THEN 0 ELSE w.repaired END
        """,
        {"name": name, "after": after, "now": now},
    )


def save_walk(name: str, *, after: str, now: datetime) -> None:
    """Save the cursor of a repair walk; clear its alert after a round without repairs."""
    if not after and not load_cursor(name).repaired:
        clear_repair(name, now=now)
    save_cursor(name, after=after, now=now)


def count_repairs(name: str, counts: dict[str, int], *, now: datetime) -> None:
    """Raise the alert of a repair and count it, in the transaction of the repair."""
    raise_repair(name, counts, now=now)
    execute(
        """
        INSERT INTO controlplane_walk (name, after, scanned_at, repaired)
        VALUES (%s, '', '-infinity', %s)
        ON CONFLICT (name) DO UPDATE SET repaired = controlplane_walk.repaired + EXCLUDED.repaired
        """,
        [name, sum(counts.values())],
    )
