"""The only module of a cell that reads the system's clocks; others get it as an argument."""

import time
from functools import lru_cache
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def wall_seconds() -> float:
    """Seconds since 1970, for what people read and what is compared across machines."""
    return time.time()


def boot_seconds() -> float:
    """Seconds since boot, sleep included (CLOCK_BOOTTIME, if it exists): what leases run on."""
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
