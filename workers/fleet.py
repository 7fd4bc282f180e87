"""`python -m workers.fleet`: many cells in one process, for scale tests and benchmarks.

Each cell has its own key, incarnation, queue, lease and journal. They share a loop, a journal file
with one fsync per round, and a Celery worker. Their attempts are simulated by the memory driver.
Settings: see `workers.fleet_config`.
"""

import os
import sys

from workers import clock
from workers.config import CellConfig, MalformedSettings
from workers.drivers.base import Driver, Listener
from workers.drivers.memory import MemoryDriver, TimerHeap
from workers.fleet_config import DEFAULT_PREFIX, read_fleet
from workers.service.serving import serve


def main() -> int:
    """Run the fleet until it is stopped; return the exit code."""
    try:
        configs = read_fleet(os.environ)
    except MalformedSettings as error:
        sys.stderr.write(f"settings refused: {error}\n")
        return 2
    prefix = os.environ.get("CELLRUN_FLEET_PREFIX") or DEFAULT_PREFIX
    moments = TimerHeap()

    def make_driver(_: CellConfig, emit: Listener) -> Driver:
        return MemoryDriver(emit, clock=clock.wall_seconds, moments=moments)

    return serve(configs, make_driver, name=f"cell@{prefix.rstrip('-._')}", schedule=moments)


if __name__ == "__main__":
    sys.exit(main())
