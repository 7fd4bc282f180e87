"""CPU seconds that processes and their children have used, from /proc."""

import os
import time
from collections.abc import Mapping
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pids: Mapping[str, int]) -> dict[str, float]:
    """User and system time of each process and everything that descends from it."""
    parents: dict[int, list[int]] = {}
    times: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        pid = int(path.parent.name)
        parents.setdefault(int(fields[1]), []).append(pid)
        # utime, stime, and those of children that were waited for.
        times[pid] = sum(map(int, fields[11:15])) / _TICK
    return {name: _sum(pid, parents, times) for name, pid in pids.items()}


class Others:
    """How much of the machine is used by what is neither this process nor one of `pids`."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids
        self._began = time.perf_counter()
        self._before = self._used()

    def cores(self) -> float:
        """Cores, on average since the start."""
        used = self._used() - self._before
        return max(used, 0.0) / (time.perf_counter() - self._began)

    def _used(self) -> float:
        ours = sum(cpu_seconds(self._pids).values()) + time.process_time()
        return machine_busy_seconds() - ours


def resident_mib(pid: int) -> float:
    """Return the memory of a process that is in RAM."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def machine_busy_seconds() -> float:
    """CPU time that anything on this machine has used, all cores together."""
    names = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    numbers = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
    ticks = dict(zip(names, map(int, numbers), strict=False))
    return (sum(ticks.values()) - ticks["idle"] - ticks["iowait"]) / _TICK


def spent(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What was used between two readings."""
    return {name: after[name] - before[name] for name in before}


def _sum(pid: int, parents: Mapping[int, list[int]], times: Mapping[int, float]) -> float:
    own = times.get(pid, 0.0)
    return own + sum(_sum(child, parents, times) for child in parents.get(pid, ()))
