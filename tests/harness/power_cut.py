"""What a power cut would leave of files: only what was synced counts as written.

The system's calls do their work; each sync notes what its file holds, and each renaming what of the
file was synced by then.
"""

import os
import threading
from pathlib import Path
from typing import Any

import pytest


class Disk:
    """Records syncs and renamings from now until the end of the test.

    `calls`: in order, each with the name of what it was about. `renamed`: what a power cut right
    after each renaming would leave under the new name. `is_failing`: every sync fails: no room.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.renamed: list[bytes] = []
        self.is_failing = False
        self.failed: list[str] = []
        self.has_failed = threading.Event()
        self._kept: dict[int, bytes] = {}
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._recording_sync(name, getattr(os, name)))
        for name in ("rename", "replace"):
            monkeypatch.setattr(os, name, self._recording_rename(getattr(os, name)))

    def keeps(self, path: Path) -> bytes:
        """What would be in the file."""
        return self._kept.get(path.stat().st_ino, b"")

    def _recording_sync(self, name: str, real: Any) -> Any:
        def sync(file: int) -> None:
            if self.is_failing:
                self.failed.append(name)
                self.has_failed.set()
                raise OSError(28, "No space left on device")
            real(file)
            path = Path(f"/proc/self/fd/{file}").resolve()
            self.calls.append(f"sync {path.name}")
            if path.is_file():
                # Zeros at the end are room that a journal keeps ahead.
                self._kept[path.stat().st_ino] = path.read_bytes().rstrip(b"\0")

        return sync

    def _recording_rename(self, real: Any) -> Any:
        def rename(old: Any, new: Any, **folders: int) -> None:
            folder = folders.get("src_dir_fd")
            path = Path(old) if folder is None else Path(f"/proc/self/fd/{folder}") / old
            if path.is_file():
                self.renamed.append(self.keeps(path))
                self.calls.append(f"rename to {Path(new).name}")
            real(old, new, **folders)

        return rename
