"""`python -m tests.simulation SEED...`: simulate again what failed. `--count N`: that many from SEED on."""

import argparse
import os
import sys
import time

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.config.settings")

import tests.pgtest  # isort: skip  # noqa: F401  starts the database that settings name


def main() -> int:
    """Run the seeds; 1 if one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--count", type=int, default=1, help="so many seeds from each on")
    parser.add_argument(
        "--trace", action="store_true", help="show what happened even if all is well"
    )
    options = parser.parse_args()

    import django

    django.setup()
    from django.db import connection

    from tests.simulation.running import run_seed

    connection.creation.create_test_db(verbosity=0)
    failed = []
    for first in options.seeds:
        for seed in range(first, first + options.count):
            began = time.monotonic()
            outcome = run_seed(seed)
            took = time.monotonic() - began
            if outcome.failure:
                failed.append(seed)
                print(outcome.report())
            elif options.trace:
                print("\n".join(outcome.trace))
            said = "FAILS" if outcome.failure else "ok"
            print(f"seed {seed}: {said}, {outcome.elapsed:.0f} s in {took:.2f} s {outcome.digest}")
    if failed:
        print(f"failed: {' '.join(map(str, failed))}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
