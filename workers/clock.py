"""The only module of a cell that reads the system's clocks; others get the time as an argument."""

import time
from functools import lru_cache
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def wall_seconds() -> float:
    """Return seconds since 1970, for times that people read or other machines compare."""
    return time.time()


def boot_seconds() -> float:
    """Return seconds since boot including sleep (CLOCK_BOOTTIME if it exists), used for leases."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@lru_cache(maxsize=1)
def boot_id() -> str:
    """Return the boot id of the machine: times of different boots are not comparable.

    Empty where the system has none.
    """
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
