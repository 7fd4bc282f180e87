"""The folders of tasks that need no files: made when they start, gone when they are empty.

To make and delete two folders for each task takes ten times what it takes to give one another name.
"""

import contextlib
import os
import shutil

MAX_SPARE = 64
SPARE = "spare"


class Folders:
    """Folders below `work`, each with `root` in it; empty ones are kept in `spare` for others."""

    def __init__(self, work: str) -> None:
        self.work = work
        self.spares: list[str] = []
        self.number = 0
        self.like: tuple[int, int, int] | None = None  # the mode of an unchanged folder

    def begin(self) -> None:
        """What an earlier process kept is not known."""
        shutil.rmtree(SPARE, ignore_errors=True)
        os.mkdir(SPARE)

    def path(self, uid: str) -> str:
        """Of the attempt."""
        return f"{self.work}/{uid}"

    def make(self, folder: str) -> None:
        """Raises OSError. One that is there may stay."""
        while self.spares:
            spare = self.spares.pop()
            try:
                os.rename(spare, folder)
                return
            except OSError:
                with contextlib.suppress(OSError):
                    drop(spare)
        os.makedirs(f"{folder}/root", exist_ok=True)
        if self.like is None:
            self.like = identity(f"{folder}/root")

    def sweep(self, folder: str, *, may_be_reused: bool) -> bool:
        """Whether nothing was in it, and it is gone."""
        root = f"{folder}/root"
        try:
            is_own = self.like == identity(root) == identity(folder)
            if not is_own or os.listdir(root) or os.listdir(folder) != ["root"]:
                return False
            if may_be_reused and len(self.spares) < MAX_SPARE:
                self.number += 1
                spare = f"{SPARE}/{self.number}"
                os.rename(folder, spare)
                self.spares.append(spare)
            else:
                drop(folder)
        except OSError:
            return False
        return True


def drop(folder: str) -> None:
    """Delete it, if nothing is in it."""
    os.rmdir(f"{folder}/root")
    os.rmdir(folder)


def identity(folder: str) -> tuple[int, int, int]:
    """What it is, and whose."""
    seen = os.lstat(folder)
    return seen.st_mode, seen.st_uid, seen.st_gid
