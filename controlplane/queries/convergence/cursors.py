"""Load the cursors of paged work: one row for each kind of work, kept across restarts."""

from dataclasses import dataclass
from datetime import datetime

from controlplane.queries.sql import rows


@dataclass(frozen=True, slots=True)
class Cursor:
    """The progress of paged work.

    `after`: the row after which the next page begins; empty at the front. `page_at`: when the last
    page was read, if ever. `repaired`: the number of repairs in this round.
    """

    after: str = ""
    page_at: datetime | None = None
    repaired: int = 0


def load_cursor(name: str) -> Cursor:
    """Return the cursor of the work `name`, with defaults for work that never ran."""
    found = rows(
        """
        SELECT after, NULLIF(scanned_at, '-infinity'), repaired FROM controlplane_walk
        WHERE name = %s
        """,
        [name],
    )
    return Cursor(*found[0]) if found else Cursor()
