"""Which random courses a run of the tests takes: always the same of the same source."""

import os
from pathlib import Path
from zlib import crc32

# What a course depends on. Another test, or a page of the documents, changes none of them.
SOURCES = "controlplane", "workers", "tests/simulation"

_ROOT = Path(__file__).resolve().parents[2]


def base_of(root: Path) -> int:
    """The number that all seeds of a run begin at, by what stands in the sources below `root`."""
    found = 0
    for path in sorted(path for name in SOURCES for path in (root / name).rglob("*.py")):
        found = crc32(str(path.relative_to(root)).encode(), found)
        found = crc32(path.read_bytes(), found)
    return found % 10_000_000 * 1_000


def draw() -> int:
    """The base of this run: SIMULATION_BASE, which workers of pytest-xdist inherit, or ours."""
    return int(os.environ.setdefault("SIMULATION_BASE", str(base_of(_ROOT))))
