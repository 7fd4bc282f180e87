"""Image backoff: decide when tasks of an image that cannot be pulled are held back.

A failure on one cell may be a network problem of that cell. Once an image failed on several cells,
its registry is considered unavailable: trying it everywhere would only use up retry budgets.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

# Number of cells that must have failed to pull the image within `WITHIN`.
CELLS = 3
WITHIN = timedelta(minutes=10)
FIRST_HOLD = timedelta(seconds=60)
LONGEST_HOLD = timedelta(minutes=10)
# Older failures are ignored.
FORGOTTEN_AFTER = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class PullFailures:
    """Failed pulls of one image on one cell: the number of rounds, and the time of the last.

    All failures within the first hold count as one round, however many tasks failed.
    """

    cell_id: int
    count: int
    failed_at: datetime


def held_until(failures: Iterable[PullFailures], *, now: datetime) -> datetime | None:
    """Return until when no task of the image is placed, or None if it is not held."""
    recent = [item for item in failures if item.failed_at > now - WITHIN]
    if len(recent) < CELLS:
        return None
    # At least CELLS cells had so many rounds after their first.
    again = sorted((item.count for item in recent), reverse=True)[CELLS - 1] - 1
    hold = min(FIRST_HOLD * 2 ** min(again, 16), LONGEST_HOLD)
    until = max(item.failed_at for item in recent) + hold
    return until if until > now else None
