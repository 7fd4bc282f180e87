"""The log of an attempt without a process: lines of its runner, bounded like other output."""

import os
import threading
from pathlib import Path

from workers.attempt.capture import cut_note


class LineWriter:
    """Appends to the log files in `folder`, up to `limit` bytes each; failed writes are ignored."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._limit = limit
        self._lock = threading.Lock()

    def out(self, text: str) -> None:
        """Add to stdout."""
        self._add("stdout", text)

    def err(self, text: str) -> None:
        """Add to stderr."""
        self._add("stderr", text)

    def _add(self, stream: str, text: str) -> None:
        content = (text if text.endswith("\n") else text + "\n").encode("utf-8", "replace")
        with self._lock:
            try:
                with open(self._folder / stream, "ab", buffering=0) as file:
                    room = self._limit - os.fstat(file.fileno()).st_size
                    if room >= len(content):
                        file.write(content)
                    elif room >= 0:
                        file.write(content[:room] + cut_note(self._limit))
            except OSError:
                return
