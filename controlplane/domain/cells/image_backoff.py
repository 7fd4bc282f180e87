"""When an image that cannot be pulled holds up all its tasks; pure.

One cell may have a bad line. Once an image failed on several, the registry does not give it to
anybody: to try it with every task on every cell would only use up their budgets.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

# So many cells must have failed to pull it, each of them in the last while.
CELLS = 3
WITHIN = timedelta(minutes=10)
FIRST_HOLD = timedelta(seconds=60)
LONGEST_HOLD = timedelta(minutes=10)
# Whatever failed longer ago is forgotten.
FORGOTTEN_AFTER = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class PullFailures:
    """Of one image on one cell: in how many rounds it could not be pulled, and when the last time.

    All that fails there within the first hold is one round, of however many tasks.
    """

    cell_id: int
    count: int
    failed_at: datetime


def held_until(failures: Iterable[PullFailures], *, now: datetime) -> datetime | None:
    """Until when no task of the image is placed; None: as long as nobody says more, it may be."""
    recent = [item for item in failures if item.failed_at > now - WITHIN]
    if len(recent) < CELLS:
        return None
    # As many cells as it takes have been through so many rounds, the first one not counted.
    again = sorted((item.count for item in recent), reverse=True)[CELLS - 1] - 1
    hold = min(FIRST_HOLD * 2 ** min(again, 16), LONGEST_HOLD)
    until = max(item.failed_at for item in recent) + hold
    return until if until > now else None
