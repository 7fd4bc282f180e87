"""Image backoff: delay the tasks of an image that several cells could not pull.

A failure on one cell may be a network problem of that cell. After failures on several cells, the
registry is considered unavailable, and retries on all cells would only use up budgets.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

# Number of cells with a failed pull within `WITHIN`.
CELLS = 3
WITHIN = timedelta(minutes=10)
FIRST_HOLD = timedelta(seconds=60)
LONGEST_HOLD = timedelta(minutes=10)
# Older failures are ignored.
FORGOTTEN_AFTER = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class PullFailures:
    """Failed pulls of one image on one cell: the number of rounds, and the time of the last.

    All failures within `FIRST_HOLD` count as one round.
    """

    cell_id: int
    count: int
    failed_at: datetime


def held_until(failures: Iterable[PullFailures], *, now: datetime) -> datetime | None:
    """Return the time before which no task of the image is placed, or None."""
    recent = [item for item in failures if item.failed_at > now - WITHIN]
    if len(recent) < CELLS:
        return None
    # The number of further rounds that at least CELLS cells had.
    repeats = sorted((item.count for item in recent), reverse=True)[CELLS - 1] - 1
    hold = min(FIRST_HOLD * 2 ** min(repeats, 16), LONGEST_HOLD)
    until = max(item.failed_at for item in recent) + hold
    return until if until > now else None
