"""The one place of a cell that asks the system for the time; everything else is told it."""

import time


def wall_seconds() -> float:
    """Seconds since 1970, for what people read and what is compared across machines."""
    return time.time()


def boot_seconds() -> float:
    """Seconds since boot, sleep included (CLOCK_BOOTTIME, if it exists): what leases run on."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
