"""What sequencers by share have in common: whoever holds least has the next turn.

A turn lasts until its owner holds more than the next one, so that at equal demand no two shares
differ by more than one task's.
"""

from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

import numpy as np

from controlplane.domain.placement.interfaces import Queue, Turn, Vector


def turns_by_share(queue: Queue, weight_of: Callable[[int], float]) -> Iterator[Turn]:
    """Turns of the owners, least dominant share per weight first; FIFO within an owner."""
    order = np.lexsort((~queue.is_child, queue.owner))
    order = order[queue.left[order] > 0]
    bounds = np.flatnonzero(np.diff(queue.owner[order])) + 1
    rows_of = {int(queue.owner[rows[0]]): rows for rows in np.split(order, bounds) if len(rows)}
    heap = [(queue.share_of(owner) / weight_of(owner), owner) for owner in rows_of]
    heapify(heap)
    at = dict.fromkeys(rows_of, 0)
    while heap:
        share, owner = heappop(heap)
        rows = rows_of[owner]
        at[owner] = first = _skip(queue, rows, at[owner])
        if first == len(rows):
            continue
        each = queue.share_of_task(int(rows[first])) / weight_of(owner)
        ahead = heap[0][0] - share if heap else np.inf
        tasks = int(min(ahead / each, 1 << 31)) + 1 if each > 0 else 1 << 31
        yield _turn(queue, rows, first, tasks)
        heappush(heap, (queue.share_of(owner) / weight_of(owner), owner))


def _skip(queue: Queue, rows: Vector, first: int) -> int:
    while first < len(rows) and not queue.left[rows[first]]:
        first += 1
    return first


def _turn(queue: Queue, rows: Vector, first: int, tasks: int) -> Turn:
    """The rows from `first` on that have its shape, as many as `tasks` tasks need."""
    last, found = first, 0
    while (
        last < len(rows) and found < tasks and queue.shape[rows[last]] == queue.shape[rows[first]]
    ):
        found += int(queue.left[rows[last]])
        last += 1
    return Turn(rows[first:last], min(tasks, found))
