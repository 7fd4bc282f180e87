"""`python -m benchmarks [--only B1,CANCEL] [--runs N]`: prints tables and keeps the figures."""

import argparse
import sys
import traceback
from collections.abc import Callable

from benchmarks import (
    cached,
    cancel,
    containers,
    futures,
    idle,
    killed_fleet,
    latency,
    matrix,
    pages,
    placing,
    processes,
    queues,
    retention,
    store,
    throughput,
    unplaceable,
)
from benchmarks.report import Result, show, write

ALL: dict[str, Callable[[int], Result]] = {
    "B1": throughput.run,
    "B2": matrix.run,
    "B3": queues.run,
    "B5": placing.run,
    "B6": latency.run,
    "B7": containers.run,
    "B8": processes.run,
    "B10": idle.run,
    "B12": killed_fleet.run,
    "CACHE": cached.run,
    "CANCEL": cancel.run,
    "FUTURES": futures.run,
    "PAGES": pages.run,
    "RETENTION": retention.run,
    "STORE": store.run,
    "UNPLACEABLE": unplaceable.run,
}


def main() -> int:
    """Run the requested benchmarks in order; return 1 if one failed, after the others."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", default=",".join(ALL), help=f"some of {', '.join(ALL)}")
    parser.add_argument("--runs", type=int, default=3, help="medians are taken of so many (3)")
    chosen = parser.parse_args()
    wanted = [name.strip().upper() for name in chosen.only.split(",") if name.strip()]
    for name in wanted:
        if name not in ALL:
            parser.error(f"there is no benchmark {name}: {', '.join(ALL)}")
    if chosen.runs < 1:
        parser.error("--runs is at least 1")
    failed = [name for name in wanted if not _run(name, chosen.runs)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr, flush=True)
    return 1 if failed else 0


def _run(name: str, runs: int) -> bool:
    """Run one and keep its figures, or show its traceback. Return whether it ended well."""
    try:
        result = ALL[name](runs)
        show(result)
        print(f"figures: {write(result)}\n", flush=True)
    except Exception:  # whatever one does, the others are run
        print(f"{name} failed:", file=sys.stderr, flush=True)
        traceback.print_exc()
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
