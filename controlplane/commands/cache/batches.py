"""Requests of the cache to the store: several at once, and not for longer than a tick can wait.

A store that does not respond takes seconds for each request. The tick has other rules to run.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from django.conf import settings

from controlplane import clock

# Of an object store; a folder answers at once.
REQUESTS_AT_ONCE = 16

T = TypeVar("T")
R = TypeVar("R")


def map_in_time(work: Callable[[T], R], items: Sequence[T], *, until: float) -> list[R]:
    """Return the results of `work` for the first items, in order; begin none after `until`.

    `until`: a time of `clock.monotonic`. The first batch is done in any case.
    """
    if not settings.CELLRUN.has_object_store:
        return _map_batches(lambda batch: list(map(work, batch)), items, 1, until)
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        return _map_batches(
            lambda batch: list(pool.map(work, batch)), items, REQUESTS_AT_ONCE, until
        )


def _map_batches(
    work: Callable[[Sequence[T]], list[R]], items: Sequence[T], size: int, until: float
) -> list[R]:
    done: list[R] = []
    for start in range(0, len(items), size):
        if start and clock.monotonic() >= until:
            break
        done += work(items[start : start + size])
    return done
