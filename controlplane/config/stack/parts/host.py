"""Divide the capacity of this machine among its cells."""

import os
import shutil
from pathlib import Path

# The rest is for the control plane, PostgreSQL, Redis and the system itself.
SHARE_FOR_TASKS = 0.8
MIN_CPU_MILLIS = 500
MIN_MEMORY_MIB = 256
MIN_DISK_MIB = 1024


def share_of_host(cells: int, folder: Path) -> str:
    """Return the capacity of one of `cells` cells in the format of CELLRUN_CELL_CAPACITY."""
    cells = max(cells, 1)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cpu_millis = max((cores or 1) * 1000 // cells, MIN_CPU_MILLIS)
    memory = max(int(_memory_mib() * SHARE_FOR_TASKS / cells), MIN_MEMORY_MIB)
    free_mib = shutil.disk_usage(folder).free // (1024 * 1024)
    disk = max(int(free_mib * SHARE_FOR_TASKS / cells), MIN_DISK_MIB)
    return f"cpu={cpu_millis}m,memory={memory}Mi,disk={disk}Mi,gpu=0"


def _memory_mib() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (1024 * 1024)
