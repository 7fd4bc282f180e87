"""The folder of the store."""

import os
from pathlib import Path

from django.conf import settings

from controlplane.storage.interface import StoreFull

_MIB = 2**20


def root() -> Path:
    """Return the folder of the store."""
    folder: Path = settings.CELLRUN.store_folder
    return folder


def check_space(size: int = 0) -> None:
    """Raise StoreFull if less space than the floor would be free after `size` more bytes."""
    floor = settings.CELLRUN.store_min_free_mib * _MIB
    if not floor:
        return
    folder = root()
    while not folder.exists():  # the first file creates it
        folder = folder.parent
    found = os.statvfs(folder)
    free = found.f_bavail * found.f_frsize
    if free - size < floor:
        wanted = f", and {size / _MIB:.1f} MiB are to be stored" if size else ""
        raise StoreFull(
            f"the store has {free // _MIB} MiB of free space{wanted}, of which it keeps"
            f" {floor // _MIB} MiB free (CELLRUN_STORE_MIN_FREE_MIB)"
        )


def sync_folder(folder: Path) -> None:
    """Write the folder to disk, without which the name of a new file may be lost."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
