"""The folders of tasks that need no files: created at the start, removed at the end if empty.

Renaming a spare folder takes a tenth of the time of creating and deleting two folders.
"""

import contextlib
import os
import shutil

# As many as tasks may end at once: ext4 creates folders slowly just after it has deleted many.
MAX_SPARE = 1024
SPARE = "spare"


class Folders:
    """Folders below `work`, each with a folder `root`; empty ones move to `spare` for reuse."""

    def __init__(self, work: str) -> None:
        self.work = work
        self.spares: list[str] = []
        self.number = 0
        self.expected_identity: tuple[int, int, int] | None = None  # of an unchanged folder

    def begin(self) -> None:
        """Delete the spare folders of an earlier process."""
        shutil.rmtree(SPARE, ignore_errors=True)
        os.mkdir(SPARE)

    def path(self, uid: str) -> str:
        """Return the folder of an attempt."""
        return f"{self.work}/{uid}"

    def make(self, folder: str) -> None:
        """Create `folder`, or leave an existing one. Raise OSError."""
        while self.spares:
            spare = self.spares.pop()
            try:
                os.rename(spare, folder)
                return
            except OSError:
                with contextlib.suppress(OSError):
                    delete_empty(spare)
        os.makedirs(f"{folder}/root", exist_ok=True)
        if self.expected_identity is None:
            self.expected_identity = identity(f"{folder}/root")

    def sweep(self, folder: str, *, may_be_reused: bool) -> bool:
        """Remove `folder` if it is empty and unchanged; return whether it was."""
        root = f"{folder}/root"
        try:
            is_own = self.expected_identity == identity(root) == identity(folder)
            if not is_own or os.listdir(root) or os.listdir(folder) != ["root"]:
                return False
            if may_be_reused and len(self.spares) < MAX_SPARE:
                self.number += 1
                spare = f"{SPARE}/{self.number}"
                os.rename(folder, spare)
                self.spares.append(spare)
            else:
                delete_empty(folder)
        except OSError:
            return False
        return True


def delete_empty(folder: str) -> None:
    """Delete `folder` with its `root`. Raise OSError if it is not empty."""
    os.rmdir(f"{folder}/root")
    os.rmdir(folder)


def identity(folder: str) -> tuple[int, int, int]:
    """Return mode, owner and group of `folder`."""
    found = os.lstat(folder)
    return found.st_mode, found.st_uid, found.st_gid
