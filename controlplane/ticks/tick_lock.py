"""The placement ticks take turns: an advisory lock, taken again for each transaction.

It only saves work: whoever decides at the same time is found out when the rows are locked.
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
    """What `work` comes to, in a transaction; None: somebody else has the turn.

    A deadlock lets go of everything, and all of it is done again.
    """
    result: _T | None = None

    def locked() -> None:
        nonlocal result
        is_ours = not settings.CELLRUN.advisory_locks or try_lock(_LOCK)
        result = work() if is_ours else None

    run_in_transaction(locked)
    return result
