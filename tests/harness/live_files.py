"""Read folders whose owner may delete files meanwhile."""

import os
from pathlib import Path


def files_below(folder: Path) -> list[Path]:
    """Return the files below a folder; skip what is deleted meanwhile."""
    found = (Path(path, name) for path, _, names in os.walk(folder) for name in names)
    return [path for path in found if path.is_file()]


def content_of(path: Path) -> bytes:
    """Return the content of a file, empty if it has been deleted."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
