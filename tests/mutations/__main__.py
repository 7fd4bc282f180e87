"""`python -m tests.mutations [NAME...]`: print the seed that finds each planted mistake."""

import os
import sys
import time

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.config.settings")

import tests.harness.pgtest  # isort: skip  # noqa: F401  one database server for all of them

import django

django.setup()

from tests.mutations.running import MUTATIONS, first_failing_seed, seeds_for  # noqa: E402


def main() -> int:
    """Try all, or those named; 1 if one is not found."""
    names = sys.argv[1:]
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


if __name__ == "__main__":
    sys.exit(main())
