"""The folder of the store."""

import os
from pathlib import Path

from django.conf import settings


def root() -> Path:
    """Return the folder of the store."""
    folder: Path = settings.CELLRUN.store_folder
    return folder


def sync_folder(folder: Path) -> None:
    """Write the folder to disk, without which the name of a new file may be lost."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
