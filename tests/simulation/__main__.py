"""`python -m tests.simulation SEED...`: simulate again what failed, or many, one by one."""

import argparse
import os
import sys
import time

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.config.settings")

import tests.harness.pgtest  # isort: skip  # noqa: F401  starts the database that settings name

import django
from django.db import connection


def main() -> int:
    """Run the seeds; 1 if one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--count", type=int, default=1, help="so many seeds from each on")
    parser.add_argument("--trace", action="store_true", help="show what happened in any case")
    parser.add_argument("--gangs", action="store_true", help="the bench of many large gangs")
    parser.add_argument("--stop", action="store_true", help="stop at the first that fails")
    options = parser.parse_args()
    django.setup()
    connection.settings_dict["TEST"].update(NAME=f"test_simulation_{os.getpid()}", MIGRATE=False)
    database = connection.settings_dict["NAME"]
    connection.creation.create_test_db(verbosity=0)
    try:
        failed = run(options)
    finally:
        connection.creation.destroy_test_db(database, verbosity=0)
    if failed:
        print(f"failed: {' '.join(map(str, failed))}")
    return 1 if failed else 0


def run(options: argparse.Namespace) -> list[int]:
    """Run the seeds; those that fail."""
    from tests.simulation.gang_bench import run_bench  # needs Django to be set up
    from tests.simulation.running import run_seed

    failed: list[int] = []
    for seed in (first + n for first in options.seeds for n in range(options.count)):
        began = time.monotonic()
        outcome = run_bench(seed) if options.gangs else run_seed(seed)
        took = time.monotonic() - began
        if outcome.failure:
            failed.append(seed)
            print(outcome.report())
        elif options.trace:
            print("\n".join(outcome.trace))
        result = "FAILS" if outcome.failure else "ok"
        line = f"seed {seed}: {result}, {outcome.elapsed:.0f} s in {took:.2f} s {outcome.digest}"
        print(line, flush=True)
        if failed and options.stop:
            break
    return failed


if __name__ == "__main__":
    sys.exit(main())
