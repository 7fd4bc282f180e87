"""Secrets that tasks get as files: in memory, separate from the cell's folder on disk.

Each attempt has its own folder here, which is deleted when the attempt is removed. The next process
of a killed cell deletes orphaned folders; a power cut deletes all.
"""

import os
import shutil
import stat
import threading
import zlib
from collections.abc import Sequence
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

MEMORY = Path("/dev/shm")  # a tmpfs on Linux, also in most containers
IN_MEMORY = ("tmpfs", "ramfs")
MOUNTS = Path("/proc/self/mountinfo")


class UnsafeSecretFolder(Exception):
    """The folder must not hold secrets: it is not in memory, or belongs to another user."""


def default_folder(installation: str, cell: str, home: Path) -> Path:
    """Return a folder that is unique on this machine, even among cells of the same name."""
    return MEMORY / f"cellrun-{installation}-{cell}-{zlib.crc32(str(home).encode()):08x}"


class SecretFolder:
    """A cell's secrets as files. Thread-safe."""

    def __init__(self, folder: Path, *, may_be_on_disk: bool = False) -> None:
        """Create the object; the folder is created when needed, and deleted when empty."""
        self._folder = folder
        self._may_be_on_disk = may_be_on_disk
        self._lock = threading.Lock()

    def write(self, uid: str, values: Sequence[bytes]) -> list[Path]:
        """Create a readable file for each value in a private folder.

        Repeatable: the files of an attempt always have the same names. Raise UnsafeSecretFolder,
        OSError.
        """
        with self._lock:
            folder = self._make_attempt_folder(uid)
            return [_write(folder / str(number), value) for number, value in enumerate(values)]

    def make_subfolder(self, uid: str, name: str) -> Path:
        """Create a folder for files that change while the attempt runs.

        In a container it is readable for every user. Raise UnsafeSecretFolder, OSError.
        """
        with self._lock:
            self._make_attempt_folder(uid)
            subfolder = self.subfolder(uid, name)
            subfolder.mkdir(exist_ok=True)
            subfolder.chmod(0o755)
            return subfolder

    def subfolder(self, uid: str, name: str) -> Path:
        """Return the folder that `make_subfolder` creates."""
        return self._folder / uid / name

    def remove(self, uid: str) -> None:
        """Delete the folder of the attempt."""
        with self._lock:
            shutil.rmtree(self._folder / uid, ignore_errors=True)
            self._drop_if_empty()

    def sweep(self, work: Path) -> None:
        """Delete folders of attempts without a workspace in `work`."""
        with self._lock:
            if not self._folder.is_dir() or self._folder.is_symlink():
                return
            for folder in self._folder.iterdir():
                if not (work / folder.name).exists():
                    log.warning("orphaned_secrets_removed", attempt=folder.name)
                    shutil.rmtree(folder, ignore_errors=True)
            self._drop_if_empty()

    def _make_attempt_folder(self, uid: str) -> Path:
        self._make()
        folder = self._folder / uid
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def _make(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self._folder.lstat()
        # Other users may write to the parent folder, and may have created it first.
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise UnsafeSecretFolder(f"{self._folder} is not a folder of the cell's own user")
        self._folder.chmod(0o700)
        if not self._may_be_on_disk and not is_in_memory(self._folder):
            self._drop_if_empty()
            raise UnsafeSecretFolder(
                f"{self._folder} is not in memory (tmpfs): set another in CELLRUN_CELL_SECRETS"
            )

    def _drop_if_empty(self) -> None:
        try:
            self._folder.rmdir()
        except OSError:
            return


def is_in_memory(folder: Path) -> bool:
    """Return whether files in `folder` are only in memory (or swap)."""
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines():
        mounted, _, source = line.partition(" - ")
        if mounted.split()[2] == wanted:
            return source.split()[0] in IN_MEMORY
    return False


def _write(path: Path, value: bytes) -> Path:
    """Write the file atomically."""
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(value)
    # The folder is private on the host; in a container every user of the task may read the file.
    draft.chmod(0o444)
    draft.replace(path)
    return path
