"""The yardstick: HyperQueue as it comes, server and worker on this machine, running `true`.

HyperQueue is not among our requirements: a binary of 30 MB for one figure. It is installed in a
folder of its own while it is needed, and used from there by a program of its own:
`python hyperqueue_true.py TASKS` prints tasks/s.
"""

import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

VERSION = "0.27.0"
WARM_UP_TASKS = 200
RUN_SECONDS = 300


@contextlib.contextmanager
def installed() -> Iterator[Callable[[int], tuple[float, float]]]:
    """Installs it from this machine's package index; what is yielded measures so many tasks.

    It returns tasks/s, and the CPU time of server, worker and processes together, in ms a task.
    """
    with tempfile.TemporaryDirectory(prefix="cellrun-hyperqueue-") as folder:
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--target", folder]
        install += ["--disable-pip-version-check", "--root-user-action=ignore"]
        subprocess.run([*install, f"hyperqueue=={VERSION}"], check=True)
        environment = {**os.environ, "PYTHONPATH": folder}

        def rate(tasks: int) -> tuple[float, float]:
            done = subprocess.run(
                [sys.executable, __file__, str(tasks)],
                env=environment,
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                timeout=RUN_SECONDS,
            )
            tasks_per_second, cpu_ms = json.loads(done.stdout.splitlines()[-1])
            return float(tasks_per_second), float(cpu_ms)

        yield rate


def measure(tasks: int) -> tuple[float, float]:
    """Submit so many tasks; tasks/s, and ms of CPU a task."""
    hyperqueue = importlib.import_module("hyperqueue")
    cluster_module = importlib.import_module("hyperqueue.cluster")
    with (
        tempfile.TemporaryDirectory() as folder,
        hyperqueue.LocalCluster(f"{folder}/server", cluster_module.WorkerConfig()) as cluster,
    ):
        run(hyperqueue, cluster, WARM_UP_TASKS, folder)
        before = sum(os.times()[:4])
        found = run(hyperqueue, cluster, tasks, folder)
        return found, 1000 * (sum(os.times()[:4]) - before) / tasks


def run(hyperqueue: Any, cluster: Any, tasks: int, folder: str) -> float:
    """Tasks/s of one job, no output kept, which is the faster way.

    The client looks once a second: so it counts up to the last look that saw some unfinished.
    """
    protocol = importlib.import_module("hyperqueue.ffi.protocol")
    job = hyperqueue.Job(max_fails=None, default_workdir=folder)
    for _ in range(tasks):
        share = protocol.ResourceRequest(cpus=0.01)
        job.program(["true"], resources=share, stdout=None, stderr=None)
    client = cluster.client()
    looks: list[float] = []

    def look(jobs: dict[int, dict[str, int]]) -> None:
        (seen,) = jobs.values()
        looks.append(seen["finished"] / (time.perf_counter() - began))

    began = time.perf_counter()
    submitted = client.submit(job)
    client.connection.wait_for_jobs([submitted.id], look)
    return max(looks)


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
