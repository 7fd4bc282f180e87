"""The peer of B8: HyperQueue as it comes, server and worker on this machine, running `true`.

Client and cluster are two processes. HyperQueue has an environment of its own in `.tools`, with
requirements/hyperqueue.txt: `python hyperqueue_true.py TASKS` there prints tasks/s and CPU.
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
from pathlib import Path
from typing import Any

VERSION = "0.27.0"
WARM_UP_TASKS = 200
RUN_SECONDS = 300
SERVE, READY = "serve", b"ready"


@contextlib.contextmanager
def installed() -> Iterator[Callable[[int], tuple[float, float]]]:
    """Install it; yield a function that measures so many tasks.

    It returns tasks/s, and the CPU time of server, worker and processes together, in ms a task.
    """
    # Imported here: the environment of HyperQueue has no packages of Cellrun.
    from tests.harness.clients import installed_clients

    python = installed_clients("hyperqueue") / "python"

    def rate(tasks: int) -> tuple[float, float]:
        done = subprocess.run(
            [python, __file__, str(tasks)],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=RUN_SECONDS,
        )
        tasks_per_second, cpu_ms = json.loads(done.stdout.splitlines()[-1])
        return float(tasks_per_second), float(cpu_ms)

    yield rate


def measure(tasks: int) -> tuple[float, float]:
    """Submit so many tasks; tasks/s, and ms of CPU a task, of all processes together."""
    hyperqueue = importlib.import_module("hyperqueue")
    with tempfile.TemporaryDirectory() as folder, served(f"{folder}/server") as pid:
        client = hyperqueue.Client(f"{folder}/server")
        run(hyperqueue, client, WARM_UP_TASKS, folder)
        before = cpu_seconds(pid)
        found = run(hyperqueue, client, tasks, folder)
        return found, 1000 * (cpu_seconds(pid) - before) / tasks


@contextlib.contextmanager
def served(folder: str) -> Iterator[int]:
    """Run the cluster in a process of its own, and yield its id.

    In one process with the client, its threads wait for the interpreter that builds the job. Server
    and worker stay together: the package starts no worker for another process's server.
    """
    with subprocess.Popen(
        [sys.executable, __file__, SERVE, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if READY not in map(bytes.strip, process.stdout):  # after the server's own lines
            raise RuntimeError("HyperQueue's cluster did not start")
        try:
            yield process.pid
        finally:
            process.stdin.close()


def serve(folder: str) -> None:
    """Run a server and a worker until standard input ends."""
    cluster_module = importlib.import_module("hyperqueue.cluster")
    with cluster_module.LocalCluster(folder, cluster_module.WorkerConfig()):
        os.write(1, READY + b"\n")
        sys.stdin.read()


def cpu_seconds(pid: int) -> float:
    """CPU time of the cluster with its tasks that have ended, and of this process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") + sum(os.times()[:2])


def run(hyperqueue: Any, client: Any, tasks: int, folder: str) -> float:
    """Tasks/s of one job, no output kept, which is the faster way.

    The client polls once a second: so it counts up to the last poll that saw some unfinished.
    """
    protocol = importlib.import_module("hyperqueue.ffi.protocol")
    job = hyperqueue.Job(max_fails=None, default_workdir=folder)
    for _ in range(tasks):
        share = protocol.ResourceRequest(cpus=0.01)
        job.program(["true"], resources=share, stdout=None, stderr=None)
    rates: list[float] = []

    def sample(jobs: dict[int, dict[str, int]]) -> None:
        (seen,) = jobs.values()
        rates.append(seen["finished"] / (time.perf_counter() - began))

    began = time.perf_counter()
    submitted = client.submit(job)
    client.connection.wait_for_jobs([submitted.id], sample)
    return max(rates)


if __name__ == "__main__":
    if sys.argv[1] == SERVE:
        serve(sys.argv[2])
    else:
        print(json.dumps(measure(int(sys.argv[1]))))
