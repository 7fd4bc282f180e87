"""Detect cells that flood the inbox: far more valid messages than a working cell sends."""

from collections import Counter
from collections.abc import Mapping

WINDOW_SECONDS = 5.0
MAX_PER_WINDOW = 500
"""A busy cell sends about 50 messages in five seconds: it flushes at most ten times a second.

A message counts once more for each 64 KiB: the limit is 32 MB, or 640 results of 10 KB a second.
"""

WINDOWS = 3
"""Consecutive full windows of a flood. A backlog after an outage fills one or two, since the inbox
reads thousands a second.
"""

_Cell = tuple[int, str]


class FloodMeter:
    """Counts the messages of each cell in windows. Only messages with a valid MAC count."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._counts: Counter[_Cell] = Counter()
        self._full: dict[_Cell, int] = {}

    def count(self, counts: Mapping[_Cell, int], *, seconds: float) -> dict[_Cell, int]:
        """Count a batch; at the end of a window return flooding cells with their messages in it.

        `seconds`: of a clock that may be set back; then the window begins again.
        """
        if self._began is None or seconds < self._began:
            self._began = seconds
            self._counts.clear()
        flooding: dict[_Cell, int] = {}
        if seconds - self._began >= WINDOW_SECONDS:
            is_late = seconds - self._began >= 2 * WINDOW_SECONDS
            full = {cell for cell, sent in self._counts.items() if sent > MAX_PER_WINDOW}
            self._full = {cell: 1 + (0 if is_late else self._full.get(cell, 0)) for cell in full}
            flooding = {
                c: self._counts[c] for c, windows in self._full.items() if windows >= WINDOWS
            }
            self._began = seconds
            self._counts.clear()
        self._counts.update(counts)
        return flooding
