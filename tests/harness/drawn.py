"""Which random courses a run of the tests takes: always the same of the same source."""

import os
import sys
from pathlib import Path
from zlib import crc32

# What a course depends on. Another test, or a page of the documents, changes none of them.
SOURCES = "controlplane", "workers", "tests/simulation"

# Examples of a property in `make test`, which draws the same ones of the same source.
EXAMPLES_IN_TEST = 100

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


def examples(in_soak: int) -> int:
    """Return how many examples a property draws: all in `make soak`, which draws at random."""
    return in_soak if "--soak" in sys.argv else min(in_soak, EXAMPLES_IN_TEST)
