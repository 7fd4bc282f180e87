"""Placement passes, timed one by one: `python -m benchmarks.passes COUNT` prints seconds as JSON.

It runs in a process of its own with the control plane's settings, in the place of the process that
places, which has been stopped.
"""

import json
import sys
import time
from typing import Any

import django


def main() -> None:
    """Run so many passes of the tick, one after the other."""
    django.setup()
    from controlplane.ticks import placement

    found: list[dict[str, Any]] = []
    for _ in range(int(sys.argv[1])):
        began, cpu = time.perf_counter(), time.process_time()
        outcome = placement.run_pass()
        seconds = time.perf_counter() - began
        found.append(
            {"seconds": seconds, "cpu": time.process_time() - cpu, "placed": outcome and outcome[0]}
        )
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
