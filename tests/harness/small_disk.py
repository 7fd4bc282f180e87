"""A disk of a few megabytes that a test can fill: a real file system, so real errors."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """Mounted at `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self, *, leave: int = 0) -> None:
        """Take all room but `leave` bytes."""
        with self._ballast.open("ab") as file:
            disk = os.statvfs(self.folder)
            os.posix_fallocate(
                file.fileno(), file.tell(), max(disk.f_bavail * disk.f_frsize - leave, 1)
            )

    def clear(self) -> None:
        """Give the room back."""
        self._ballast.unlink()


@contextmanager
def mounted(folder: Path, megabytes: int = 4) -> Iterator[SmallDisk]:
    """A small disk in place of the folder, which is made."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small disk")
    folder.mkdir(parents=True, exist_ok=True)
    options = f"size={megabytes}m,mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", folder], check=True)
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
