"""Run 1,000 apps with Parsl on two jobs of Slurm, and print what was seen as JSON.

The Python of tests.harness.clients runs this file: only Parsl is imported.
"""

import json
import sys

import parsl
from parsl import python_app
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.providers import SlurmProvider

APPS, BLOCKS = 1_000, 2


@python_app
def square(number: int) -> tuple[int, str]:
    """Return the square, and the job in which it was computed."""
    import os

    return number * number, os.environ["SLURM_JOB_ID"]


def main() -> None:
    """Submit two blocks, run all apps, ask for the state of the blocks, and cancel them."""
    provider = SlurmProvider(
        partition="default",
        account="default",
        walltime="00:10:00",
        cores_per_node=1,
        mem_per_node=1,
        # The default requests a whole node, which the sbatch of Cellrun refuses.
        exclusive=False,
        init_blocks=BLOCKS,
        max_blocks=BLOCKS,
    )
    executor = HighThroughputExecutor(
        label="slurm",
        address="127.0.0.1",
        provider=provider,
        max_workers_per_node=1,
        encrypted=False,
    )
    config = Config(executors=[executor], strategy="none", run_dir=sys.argv[1])
    with parsl.load(config):
        results = [future.result() for future in [square(number) for number in range(APPS)]]
        jobs = sorted(provider.resources)
        states = [str(status.state.name) for status in provider.status(jobs)]
    seen = {
        "sum": sum(number for number, _ in results),
        "count": len(results),
        "jobs": jobs,
        "used": sorted({job for _, job in results}),
        "states": states,
        "after": [provider.resources[job]["status"].state.name for job in jobs],
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
