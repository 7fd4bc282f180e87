"""The GPUs that the processes of a cell hold: a file for each attempt, which survives the cell."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from workers.attempt.runtime import EngineError
from workers.drivers.gpus import choose_gpus, format_gpus


class GpuRecords:
    """Thread-safe. `is_holder`: whether that attempt has, or may still get, a process."""

    def __init__(self, folder: Path, capacity: int, is_holder: Callable[[str], bool]) -> None:
        self._folder = folder
        self._capacity = capacity
        self._is_holder = is_holder
        self._lock = threading.Lock()  # held until the attempt with the GPUs is a holder

    @contextmanager
    def reserve(self, uid: str, count: int) -> Iterator[tuple[int, ...]]:
        """Yield GPUs that no other attempt holds; the caller makes the attempt a holder within."""
        if not count:
            yield ()
            return
        with self._lock:
            held = [numbers for holder, numbers in self._read() if holder != uid]
            gpus = choose_gpus(count, self._capacity, held)
            try:
                self._folder.mkdir(exist_ok=True)
                (self._folder / uid).write_text(format_gpus(gpus), encoding="ascii")
            except OSError as error:
                raise EngineError(f"its GPUs cannot be recorded: {error}") from error
            yield gpus

    def release(self, uid: str) -> None:
        """Delete the record of an attempt that has ended."""
        with suppress(FileNotFoundError):
            os.unlink(self._folder / uid)

    def _read(self) -> Iterator[tuple[str, str]]:
        """Return attempts and their numbers; delete the records of former holders."""
        names = os.listdir(self._folder) if self._folder.is_dir() else []
        for uid in names:
            if self._is_holder(uid):
                with suppress(FileNotFoundError):  # released meanwhile
                    yield uid, (self._folder / uid).read_text(encoding="ascii")
            else:
                self.release(uid)
