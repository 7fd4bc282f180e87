"""Where secrets lie that tasks get as files: in memory, apart from the cell's folder on its disk.

Each attempt has a folder of its own here, and it goes when the attempt is removed. What a cell
that was killed left is removed by its successor; what a machine left that lost its power is gone.
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

MEMORY = Path("/dev/shm")  # a tmpfs wherever Linux is; also in most containers
IN_MEMORY = ("tmpfs", "ramfs")
MOUNTS = Path("/proc/self/mountinfo")


class UnsafeSecretFolder(Exception):
    """The folder must not hold secrets: it is not in memory, or belongs to another user."""


def default_folder(installation: str, cell: str, home: Path) -> Path:
    """A folder that no other cell of this machine has, be it of the same name."""
    return MEMORY / f"cellrun-{installation}-{cell}-{zlib.crc32(str(home).encode()):08x}"


class SecretFolder:
    """A cell's secrets as files; used by many threads of one process."""

    def __init__(self, folder: Path, *, may_be_on_disk: bool = False) -> None:
        """Made when it is needed, and gone when it is empty."""
        self._folder = folder
        self._may_be_on_disk = may_be_on_disk
        self._lock = threading.Lock()

    def write(self, uid: str, values: Sequence[bytes]) -> list[Path]:
        """Create readable files in a closed folder, one for each value. Raise Unfit, OSError.

        Repeatable: the files of an attempt always have the same names.
        """
        with self._lock:
            folder = self._make_for(uid)
            return [_write(folder / str(number), value) for number, value in enumerate(values)]

    def make_room(self, uid: str, name: str) -> Path:
        """Create a folder for files that change while the attempt runs. Raise Unfit, OSError.

        Bound into a container, it is open to any user of the task.
        """
        with self._lock:
            self._make_for(uid)
            room = self.room(uid, name)
            room.mkdir(exist_ok=True)
            room.chmod(0o755)
            return room

    def room(self, uid: str, name: str) -> Path:
        """Where `make_room` makes it."""
        return self._folder / uid / name

    def remove(self, uid: str) -> None:
        """Nothing of the attempt is left here."""
        with self._lock:
            shutil.rmtree(self._folder / uid, ignore_errors=True)
            self._drop_if_empty()

    def sweep(self, work: Path) -> None:
        """Remove what belongs to no attempt that has a workspace in `work`."""
        with self._lock:
            if not self._folder.is_dir() or self._folder.is_symlink():
                return
            for left in self._folder.iterdir():
                if not (work / left.name).exists():
                    log.warning("orphaned_secrets_removed", attempt=left.name)
                    shutil.rmtree(left, ignore_errors=True)
            self._drop_if_empty()

    def _make_for(self, uid: str) -> Path:
        self._make()
        folder = self._folder / uid
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def _make(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self._folder.lstat()
        # Others may write where it lies, and could have been there before us.
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise UnsafeSecretFolder(f"{self._folder} is no folder of the cell's own")
        self._folder.chmod(0o700)
        if not self._may_be_on_disk and not is_in_memory(self._folder):
            self._drop_if_empty()
            raise UnsafeSecretFolder(
                f"{self._folder} is not in memory (tmpfs): name another in CELLRUN_CELL_SECRETS"
            )

    def _drop_if_empty(self) -> None:
        try:
            self._folder.rmdir()
        except OSError:
            return


def is_in_memory(folder: Path) -> bool:
    """Return whether files there are kept in memory alone (except for the system's swap)."""
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines():
        mounted, _, source = line.partition(" - ")
        if mounted.split()[2] == wanted:
            return source.split()[0] in IN_MEMORY
    return False


def _write(path: Path, value: bytes) -> Path:
    """There as a whole or not at all."""
    unfinished = path.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(value)
    # The folder is closed; bound into a container, it is open to any user of the task.
    unfinished.chmod(0o444)
    unfinished.replace(path)
    return path
