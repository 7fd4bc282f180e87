"""CPU seconds that processes and their children have used, from /proc."""

import os
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


def spent(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    """What was used between two readings."""
    return {name: after[name] - before[name] for name in before}


def _sum(pid: int, parents: Mapping[int, list[int]], times: Mapping[int, float]) -> float:
    own = times.get(pid, 0.0)
    return own + sum(_sum(child, parents, times) for child in parents.get(pid, ()))
