"""`python -m tests.mutations [NAME...]`: which seed finds each planted mistake."""

import sys
import time

import tests.pgtest  # noqa: F401  one database server for all of them
from tests.mutations.catalogue import MUTATIONS
from tests.mutations.running import first_failing_seed


def main() -> int:
    """Try all, or those named; 1 if one is not found."""
    names = sys.argv[1:]
    missed = 0
    for mutation in MUTATIONS:
        if names and mutation.name not in names:
            continue
        began = time.monotonic()
        seed = first_failing_seed(mutation, range(1, mutation.within + 1))
        missed += seed is None
        found = "NOT FOUND" if seed is None else f"seed {seed}"
        took = time.monotonic() - began
        print(f"{mutation.name}: {found} within {mutation.within}, {took:.0f} s", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
