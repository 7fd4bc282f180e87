"""Files of attempts without a container: all paths of the task are below the attempt's folder."""

import os
import shutil
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from controlplane.contract.messages.launch_context import Registry
from workers.attempt.capture import Capture
from workers.attempt.disk import bytes_below
from workers.attempt.events import Launch
from workers.attempt.runtime import ContainerView, EngineError, PlacedFile
from workers.attempt.transfer.tars import Take, pack, unpack


def place_below(root: Path, placed: Sequence[PlacedFile]) -> None:
    """Place `placed` below `root`. Repeatable. Raise OSError.

    A bound path becomes a link, so that its source can change.
    """
    for item in placed:
        target = root / item.path.lstrip("/")
        folder = target if item.source is None else target.parent
        folder.mkdir(parents=True, exist_ok=True)
        if item.source is None:
            continue
        if target.is_symlink():
            target.unlink()
        if item.bound:
            target.symlink_to(item.source.absolute())
        else:
            shutil.copyfile(item.source, target)


def read_head_below(root: Path, path: str, limit: int) -> bytes | None:
    """Return the first bytes of a regular file below `root`; do not follow links."""
    target = root / path.lstrip("/")
    try:
        with open(os.open(target, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            found = Path(f"/proc/self/fd/{file.fileno()}")
            is_inside = Path(os.path.realpath(found)).is_relative_to(os.path.realpath(root))
            return file.read(limit) if found.is_file() and is_inside else None
    except OSError:
        return None


def save_below(root: Path, path: str, target: Path, take: Take) -> bool:
    """Pack the file or folder at `path` below `root` into `target`.

    Return False if it does not exist, or a link leads out of `root`. Raise EngineError if the path
    ends with "/" and is no folder.
    """
    source = root / path.strip("/")
    real = Path(os.path.realpath(source))
    if not real.is_relative_to(os.path.realpath(root)) or not os.path.lexists(source):
        return False
    if path.endswith("/"):
        source = real
        if not real.is_dir():
            raise EngineError(f"{path} is not a directory")
    try:
        pack(source, target, take)
    except OSError as error:
        raise EngineError(str(error)) from error
    return True


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def write_below(root: Path, path: str, source: Path) -> None:
    """Copy `source` to the file `path` below `root`; do not follow a link there."""
    target = root / path.lstrip("/")
    folder = Path(os.path.realpath(target.parent))
    if not folder.is_relative_to(os.path.realpath(root)) or _is_folder(folder / target.name):
        raise EngineError(f"{path} is a folder, or leads out of the attempt's folder", 400)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / target.name).unlink(missing_ok=True)
        shutil.copyfile(source, folder / target.name)
    except (FileExistsError, NotADirectoryError) as error:
        raise EngineError(f"a part of {path} is not a directory", 400) from error
    except OSError as error:
        raise EngineError(str(error)) from error


def restore_below(root: Path, path: str, source: Path) -> None:
    """Unpack `source` at `path` below `root`."""
    folder = root / path.strip("/")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        unpack(source, folder)
    except OSError as error:
        raise EngineError(str(error)) from error


class FolderEngine:
    """The methods of an Engine (workers.attempt.runtime) for attempts with only a folder."""

    needs_image = False
    keeps_logs = False
    feeds_stdin = False

    def __init__(self, home: Path) -> None:
        self._work = home.absolute() / "work"

    def root(self, uid: str) -> Path:
        """Return the folder of an attempt that contains every path of its task."""
        return self._work / uid / "root"

    def find_image(self, image: str) -> str | None:
        """Return an empty digest: no image is needed."""
        return ""

    def pull(
        self, image: str, on_progress: Callable[[int], None], registry: Registry | None = None
    ) -> int:
        """Return 0: no image is needed."""
        return 0

    def put(self, launch: Launch, placed: Sequence[PlacedFile]) -> None:
        """Copy, or link what is bound, below the attempt's root."""
        place_below(self.root(launch.uid), placed)

    def read_head(self, launch: Launch, path: str, limit: int) -> bytes | None:
        """Return the head of a regular file; do not follow a link."""
        return read_head_below(self.root(launch.uid), path, limit)

    def save(self, launch: Launch, path: str, target: Path, take: Take) -> bool:
        """Pack what lies below the attempt's root."""
        return save_below(self.root(launch.uid), path, target, take)

    def write(self, launch: Launch, path: str, source: Path) -> None:
        """Copy to a file below the attempt's root."""
        write_below(self.root(launch.uid), path, source)

    def stdin(self, uid: str) -> AbstractContextManager[socket.socket]:
        """Raise EngineError: the program opens the file itself."""
        raise EngineError("this engine has no connection to a standard input")

    def restore(self, launch: Launch, path: str, source: Path) -> None:
        """Unpack below the attempt's root."""
        restore_below(self.root(launch.uid), path, source)

    def disk_bytes(self, uid: str) -> int:
        """Return the size of the attempt's own folder."""
        return bytes_below(self.root(uid))

    def host(self, launch: Launch, address: str) -> str:
        """Return the host's address: a process listens at all of them."""
        return address

    def was_stopped(self, launch: Launch, view: ContainerView) -> bool:
        """Return False: the sender of a signal is unknown."""
        return False

    def copy_logs(self, uid: str, capture: Capture, *, follow: bool) -> None:
        """Copy nothing: the lines are written to the log folder directly."""
