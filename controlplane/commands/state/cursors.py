"""Save where paged work continues, and count the repairs of a walk of rule 12."""

from datetime import datetime

from controlplane.commands.state.tick_alerts import (
    REPAIRED,
    clear_repair,
    raise_repair,
    repair_subject,
)
from controlplane.queries.sql import execute, scalar

_SAVE = """
INSERT INTO controlplane_walk AS w (name, after, scanned_at, repaired)
VALUES (%(name)s, %(after)s, %(now)s, 0)
ON CONFLICT (name) DO UPDATE SET after = EXCLUDED.after, scanned_at = EXCLUDED.scanned_at,
       repaired = CASE WHEN EXCLUDED.after = '' THEN 0 ELSE w.repaired END
"""


def save_cursor(name: str, *, after: str, now: datetime) -> None:
    """Let the next page of the work `name` begin after the row `after`; if empty, at the front."""
    execute(_SAVE, {"name": name, "after": after, "now": now})


def save_walk(name: str, *, after: str, now: datetime) -> None:
    """Save the cursor of a repair walk; clear its alert after a round without repairs."""
    # The table is read as it was before.
    statement = f"""
        WITH saved AS ({_SAVE})
        SELECT NOT EXISTS (SELECT FROM controlplane_walk WHERE name = %(name)s AND repaired > 0)
           AND EXISTS (SELECT FROM controlplane_alert
                       WHERE kind = %(kind)s AND subject = %(subject)s AND cleared_at IS NULL)
        """
    alert = {"kind": REPAIRED, "subject": repair_subject(name)}
    is_over = scalar(statement, {"name": name, "after": after, "now": now, **alert})
    if is_over and not after:
        clear_repair(name, now=now)


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
