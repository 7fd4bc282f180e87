"""The time that one queue takes with a scheduler that starts and evicts tasks without delay."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Kind:
    """Tasks of one kind, in each queue: how many, how large, how long, how far apart."""

    band: str
    count: int
    cpu: int
    seconds: float
    each_seconds: float


@dataclass(frozen=True, slots=True, order=True)
class _Running:
    """A running task; the order is that of eviction."""

    level: int
    negative_start: float  # so that of one level the newest is evicted first
    end: float
    cpu: int


@dataclass(slots=True)
class _Queue:
    free: int
    running: list[_Running] = field(default_factory=list)

    def release(self, now: float) -> None:
        self.free += sum(task.cpu for task in self.running if task.end <= now)
        self.running = [task for task in self.running if task.end > now]

    def make_room(self, level: int, cpu: int) -> list[_Running] | None:
        """Evict tasks of lower levels if that makes room, and return them; None: it does not."""
        lower = sorted(task for task in self.running if task.level < level)
        if self.free + sum(task.cpu for task in lower) < cpu:
            return None
        evicted = []
        while self.free < cpu:
            task = lower.pop(0)
            self.running.remove(task)
            self.free += task.cpu
            evicted.append(task)
        return evicted


def ideal_seconds(kinds: Sequence[Kind], quota: int) -> float:
    """Return when the last task ends. `kinds`: by ascending priority.

    At each arrival and end, tasks start in the order of priority and arrival. If the quota has no
    room, the newest tasks of the lowest priority are evicted, and start anew later.
    """
    arrivals = deque(
        sorted(
            (number * kind.each_seconds, level)
            for level, kind in enumerate(kinds)
            for number in range(kind.count)
        )
    )
    waiting = [0] * len(kinds)
    queue, now = _Queue(quota), 0.0
    while arrivals or queue.running:
        now = min([task.end for task in queue.running] + [at for at, _ in list(arrivals)[:1]])
        queue.release(now)
        while arrivals and arrivals[0][0] <= now:
            waiting[arrivals.popleft()[1]] += 1
        for level, kind in reversed([*enumerate(kinds)]):
            while waiting[level]:
                evicted = queue.make_room(level, kind.cpu)
                if evicted is None:
                    break
                for task in evicted:
                    waiting[task.level] += 1
                waiting[level] -= 1
                queue.free -= kind.cpu
                queue.running.append(_Running(level, -now, now + kind.seconds, kind.cpu))
    return now
