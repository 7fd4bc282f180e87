"""Bounds for the events that Flower keeps in memory: any cell may publish any events.

Flower limits the number of tasks that it keeps. It limits neither the length of their texts, nor
the workers and names that it counts, so invented ones would end it for lack of memory.
"""

from collections.abc import Container
from typing import Any

MAX_CHARS = 1_000
"""Of each text of an event. The longest of a cell is the name of a job."""
MAX_FIELDS = 40
MAX_WORKERS = 5_000
ATTEMPT = "attempt"
"""The name under which Flower counts all attempts."""

_TASKS = ("sent", "received", "started", "succeeded", "failed", "rejected", "revoked", "retried")
_WORKERS = ("online", "heartbeat", "offline")
TYPES = frozenset((*(f"task-{name}" for name in _TASKS), *(f"worker-{name}" for name in _WORKERS)))


class EventBounds:
    """Cuts long events, and drops those that would take memory without limit."""

    def __init__(self, own_names: Container[str], *, max_workers: int = MAX_WORKERS) -> None:
        """Create it. `own_names`: of the control plane's tasks, which Flower counts by name."""
        self._own_names = own_names
        self._max_workers = max_workers
        self._workers: set[str] = set()

    def bounded(self, event: dict[str, Any]) -> dict[str, Any] | None:
        """Return the event with short texts; None: it is dropped."""
        kind, worker = event.get("type"), event.get("hostname")
        if not isinstance(kind, str) or kind not in TYPES or not isinstance(worker, str):
            return None
        if len(event) > MAX_FIELDS or len(worker) > MAX_CHARS:
            return None
        if worker not in self._workers:
            if len(self._workers) >= self._max_workers:
                return None
            self._workers.add(worker)
        return {
            key[:MAX_CHARS]: value[:MAX_CHARS] if isinstance(value, str) else value
            for key, value in event.items()
            if isinstance(value, str | int | float | None) or _is_load(value)
        }

    def counted_name(self, name: object) -> str:
        """Return the name under which Flower counts a task: jobs have too many names."""
        return name if isinstance(name, str) and name in self._own_names else ATTEMPT


def _is_load(value: object) -> bool:
    """Return whether `value` is a load average: the only list that workers send."""
    return (
        isinstance(value, list)
        and len(value) <= 3
        and all(isinstance(item, int | float) for item in value)
    )
