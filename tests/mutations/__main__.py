"""`python -m tests.mutations [NAME...]`: print what finds each planted mistake."""

import os
import sys
import time

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.config.settings")

import tests.harness.pgtest  # isort: skip  # noqa: F401  one database server for all of them

import django

django.setup()

from tests.mutations.catalogue import Mutation  # noqa: E402
from tests.mutations.running import (  # noqa: E402
    MUTATIONS,
    first_failing_seed,
    is_found_by_scenario,
    seeds_for,
)


def main() -> int:
    """Try all, or those named; 1 if one is not found."""
    names = sys.argv[1:]
    missed = 0
    for mutation in MUTATIONS:
        if names and mutation.name not in names:
            continue
        began = time.monotonic()
        found = _find(mutation)
        missed += not found
        took = time.monotonic() - began
        print(f"{mutation.name}: {found or 'NOT FOUND'}, {took:.0f} s", flush=True)
    return 1 if missed else 0


def _find(mutation: Mutation) -> str:
    """What finds the mistake; empty if nothing does."""
    if mutation.scenario:
        return mutation.scenario if is_found_by_scenario(mutation) else ""
    seeds = seeds_for(mutation)
    seed = first_failing_seed(mutation, seeds)
    return "" if seed is None else f"seed {seed} ({seeds.index(seed) + 1}. of {mutation.within})"


if __name__ == "__main__":
    sys.exit(main())
