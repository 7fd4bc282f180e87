"""An advisory lock by which placement ticks take turns, taken again for each transaction.

It only saves work: concurrent decisions are detected when the rows are locked.
"""

import zlib
from collections.abc import Callable
from typing import TypeVar

from django.conf import settings

from controlplane.commands.state.transactions import run_in_transaction
from controlplane.queries.ticks import try_lock

_LOCK = zlib.crc32(b"cellrun placement")
_T = TypeVar("_T")


def in_turn(work: Callable[[], _T]) -> _T | None:
    """Run `work` in a transaction and return its value; None: another tick holds the lock.

    A deadlock rolls everything back, and all of it runs again.
    """

    def locked() -> _T | None:
        is_ours = not settings.CELLRUN.advisory_locks or try_lock(_LOCK)
        return work() if is_ours else None

    return run_in_transaction(locked)
