"""Stop a task that writes more than the disk it requested, without a grace period.

During a grace period it could continue to write. The first check runs one second after the start,
then every five seconds; the engine counts all files for a check, so checks take at most a twentieth
of the time. A task that requested no disk has the default limit of its pool, which is checked every
fifteen seconds: it applies to nearly all tasks, most of which end before the first check.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from controlplane.contract.messages.orders import GroupSpec
from workers.attempt.attempt import AttemptRun
from workers.attempt.runtime import EngineAway, EngineError

FIRST_SECONDS = 1.0
POLL_SECONDS = 5.0
DEFAULT_POLL_SECONDS = 15.0
SHARE = 20  # multiplied by the duration of a check
MIB = 2**20


def first_check_seconds(spec: GroupSpec) -> float | None:
    """Return how long after the start the disk is checked first; None: it has no limit."""
    if spec.resources.get("disk_mib"):
        return FIRST_SECONDS
    return DEFAULT_POLL_SECONDS if spec.disk_limit_mib else None


def watch_disk(attempt: AttemptRun, stop: Callable[[], None]) -> None:
    """Check until the attempt has ended or exceeds its disk; the first check is immediate.

    Called some seconds after the start: most attempts have ended by then.
    """
    spec = attempt.launch.spec
    requested = spec.resources.get("disk_mib", 0)
    limit = requested or spec.disk_limit_mib
    poll_seconds = POLL_SECONDS if requested else DEFAULT_POLL_SECONDS
    pause, peak = 0.0, 0
    while not attempt.over.wait(pause) and not attempt.context.closed.is_set():
        began = time.monotonic()
        pause = poll_seconds
        try:
            used = attempt.engine.disk_bytes(attempt.uid)
        except (EngineAway, EngineError):
            continue
        peak = max(peak, used)
        attempt.usage["disk_peak_mib"] = round(peak / MIB, 1)
        pause = max(poll_seconds, SHARE * (time.monotonic() - began))
        if used > limit * MIB:
            attempt.unhealthy = f"used {used / MIB:.1f} MiB of disk, but " + (
                f"requested {limit} MiB"
                if requested
                else f"the default limit of its pool is {limit} MiB: request it (resources.disk)"
            )
            stop()
            return


def walk(
    folder: Path, *, on_error: Callable[[OSError], None] | None = None
) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield path, folders and other names of `folder` and each folder below; follow no links.

    `os.walk` of Python 3.11 recurses, so a task that nests more than 1,000 folders would end it.
    """
    waiting = [str(folder)]
    while waiting:
        path = waiting.pop()
        folders: list[str] = []
        names: list[str] = []
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    is_folder = entry.is_dir(follow_symlinks=False)
                    (folders if is_folder else names).append(entry.name)
        except OSError as error:
            if on_error:
                on_error(error)
        yield path, folders, names
        waiting += [os.path.join(path, name) for name in reversed(folders)]


def bytes_below(folder: Path, *, on_error: Callable[[OSError], None] | None = None) -> int:
    """Return the size of all readable files below `folder`; links are not followed.

    `on_error` is called for unreadable or meanwhile removed paths.
    """
    total = 0
    for path, _, names in walk(folder, on_error=on_error):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_size
            except OSError as error:  # removed meanwhile, or its folder is not readable
                if on_error:
                    on_error(error)
    return total
