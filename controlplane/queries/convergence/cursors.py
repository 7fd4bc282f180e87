"""Where paged work continues: one row for each kind of work, kept across ticks and restarts."""

from dataclasses import dataclass
from datetime import datetime

from controlplane.queries.sql import rows


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far paged work has come.

    `after`: the row behind which the next page begins; empty: at the front. `page_at`: when the
    last page was read; None: never. `repaired`: how many repairs this round has made.
    """

    after: str = ""
    page_at: datetime | None = None
    repaired: int = 0


def load_cursor(name: str) -> Cursor:
    """Return the cursor of the work `name`; work that never ran has all defaults."""
    found = rows(
        """
        SELECT after, NULLIF(scanned_at, '-infinity'), repaired FROM controlplane_walk
        WHERE name = %s
        """,
        [name],
    )
    return Cursor(*found[0]) if found else Cursor()
