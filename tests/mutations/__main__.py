"""`python -m tests.mutations [--rows] [NAME...]`: what finds each planted mistake.

Without `--rows` the simulation looks for those of the catalogue, with it each row's scenario looks
for its own; a NAME is a mistake's, or with `--rows` a row's, too.
"""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.config.settings")

import tests.pgtest  # isort: skip  # noqa: F401  one database server for all of them

import django

django.setup()

from tests.mutations.row_mutation import RowMutation  # noqa: E402
from tests.mutations.rows import ROWS  # noqa: E402
from tests.mutations.running import MUTATIONS, first_failing_seed, seeds_for  # noqa: E402
from tests.mutations.trying import is_found, passes  # noqa: E402

AT_ONCE = 2


def main() -> int:
    """Try all, or those named; 1 if one is not found."""
    names = sys.argv[1:]
    if "--rows" in names:
        names.remove("--rows")
        return try_rows([m for m in ROWS if not names or {m.name, m.row} & set(names)])
    missed = 0
    for mutation in MUTATIONS:
        if names and mutation.name not in names:
            continue
        began = time.monotonic()
        seeds = seeds_for(mutation)
        seed = first_failing_seed(mutation, seeds)
        missed += seed is None
        found = "NOT FOUND" if seed is None else f"seed {seed} ({seeds.index(seed) + 1}.)"
        took = time.monotonic() - began
        print(f"{mutation.name}: {found} within {mutation.within}, {took:.0f} s", flush=True)
    return 1 if missed else 0


def try_rows(chosen: list[RowMutation]) -> int:
    """Let the scenarios look; without a mistake all of them pass."""
    tests = sorted({mutation.test for mutation in chosen})
    if not passes(tests, database="rows_unchanged"):
        print("the scenarios fail without any mistake")
        return 1

    def attempt(numbered: tuple[int, RowMutation]) -> bool:
        number, mutation = numbered
        found = is_found(mutation, database=f"rows_{number % AT_ONCE}_{os.getpid()}")
        verdict = "found" if found else "NOT FOUND"
        print(f"{mutation.row}: {mutation.name}: {verdict} by {mutation.test}", flush=True)
        return found

    lanes = [list(enumerate(chosen))[lane::AT_ONCE] for lane in range(AT_ONCE)]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        found = list(threads.map(lambda lane: [attempt(item) for item in lane], lanes))
    missed = [item for lane in found for item in lane if not item]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
