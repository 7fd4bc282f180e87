"""The usage of an ended attempt; unknown values are omitted, not 0."""

from workers.attempt.attempt import AttemptRun
from workers.attempt.runtime import ContainerView

MIB = 2**20


def note_use(attempt: AttemptRun, view: ContainerView | None) -> None:
    """Record the total CPU seconds and the peak memory of the ended container.

    Both count every process, and the engine's own work in the container to start it.
    """
    use = view.use if view is not None else None
    if use is None:
        return
    attempt.usage["cpu_seconds"] = round(use.cpu_seconds, 4)
    if use.memory_peak_bytes is not None:
        attempt.usage["memory_peak_mib"] = round(use.memory_peak_bytes / MIB, 1)
