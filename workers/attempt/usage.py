"""What an attempt used of its host, reported at its end; unknown values are omitted, not 0."""

from workers.attempt.attempt import AttemptRun
from workers.attempt.runtime import ContainerView

MIB = 2**20


def note_use(attempt: AttemptRun, view: ContainerView | None) -> None:
    """Keep what the ended container used in all: seconds of CPU, and the most memory at one time.

    Both count every process, and what the engine itself did in the container to start it.
    """
    use = view.use if view is not None else None
    if use is None:
        return
    attempt.usage["cpu_seconds"] = round(use.cpu_seconds, 4)
    if use.memory_peak_bytes is not None:
        attempt.usage["memory_peak_mib"] = round(use.memory_peak_bytes / MIB, 1)
