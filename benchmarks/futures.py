"""FUTURES: no-op commands through the Python `Executor`, against jobs of the same tasks (B1).

The rounds alternate on one stand. A process of its own has the futures, for its memory and CPU.
"""

import json
import os
import resource
import subprocess
import sys
import time
from typing import Any

import psycopg

from benchmarks.report import Result, median, others_note
from benchmarks.stand import Stand, Wanted, standing
from benchmarks.throughput import TASKS_PER_JOB, WARM_UP_TASKS, submit_and_wait
from benchmarks.usage import Others
from cellrun import Command, Executor

CELLS = 100
FUTURES = 10_000
FEW = 1_000
SMALL = {"cpu": 0.01, "memory": "16Mi", "disk": "1Mi"}


def run(runs: int) -> Result:
    """Rates of both, and the memory of the client at 1,000, 10,000 and 30,000 futures."""
    columns = ("", "tasks/s", "of the jobs", "client CPU ms", "client memory MiB")
    title = f"{FUTURES:,} futures of no-op commands on {CELLS} cells"
    result = Result("FUTURES", title, columns)
    jobs: list[float] = []
    found: list[dict[str, float]] = []
    with standing(Wanted(cells=CELLS)) as stand, stand.connect() as connection:
        submit_and_wait(stand, connection, [WARM_UP_TASKS])
        others = Others(stand.pids)
        few = _in_a_process(stand, FEW, 1)
        for _ in range(runs):
            jobs.append(_rate_of_jobs(stand, connection))
            found.append(_in_a_process(stand, FUTURES, 1))
        many = _in_a_process(stand, FUTURES, 3)
        cores = others.cores()
    yardstick = median(jobs)
    rate = median(one["rate"] for one in found)
    result.rows = [
        (f"2 jobs of {TASKS_PER_JOB:,} tasks", f"{yardstick:,.0f}", "1.0", "", ""),
        (f"{FEW:,} futures", *_cells(few, yardstick)),
        (
            f"{FUTURES:,} futures",
            f"{rate:,.0f}",
            f"{rate / yardstick:.2f}",
            f"{median(one['cpu_ms'] for one in found):.3f}",
            f"{median(one['memory_mib'] for one in found):.0f}",
        ),
        (f"3 times {FUTURES:,} futures", *_cells(many, yardstick)),
    ]
    result.notes.append(f"Futures: {rate / yardstick:.2f} of the rate of jobs (at least 0.5).")
    result.notes.append(others_note([cores]))
    result.figures = {"jobs": jobs, "futures": found, "few": few, "many": many}
    return result


def _cells(one: dict[str, float], yardstick: float) -> tuple[str, str, str, str]:
    return (
        f"{one['rate']:,.0f}",
        f"{one['rate'] / yardstick:.2f}",
        f"{one['cpu_ms']:.3f}",
        f"{one['memory_mib']:.0f}",
    )


def _rate_of_jobs(stand: Stand, connection: psycopg.Connection[tuple[Any, ...]]) -> float:
    seconds = submit_and_wait(stand, connection, [TASKS_PER_JOB, TASKS_PER_JOB])
    time.sleep(2.0)  # what is left over passes
    return 2 * TASKS_PER_JOB / seconds


def _in_a_process(stand: Stand, count: int, rounds: int) -> dict[str, float]:
    """Run rounds of futures in a new process; return its figures."""
    environment = {
        **os.environ,
        "CELLRUN_URL": stand.plan.url,
        "CELLRUN_TOKEN": stand.plan.credentials.submitter_token,
    }
    words = [sys.executable, "-m", "benchmarks.futures", str(count), str(rounds)]
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    time.sleep(2.0)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def _client(count: int, rounds: int) -> None:
    seconds = 0.0
    with Executor(resources=SMALL) as executor:
        for _ in range(rounds):
            began = time.perf_counter()
            for ended in executor.map(Command, (["noop"] for _ in range(count))):
                assert ended is not None
            seconds += time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_SELF)
    tasks = count * rounds
    figures = {
        "rate": tasks / seconds,
        "cpu_ms": 1000 * (used.ru_utime + used.ru_stime) / tasks,
        "memory_mib": used.ru_maxrss / 1024,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    _client(int(sys.argv[1]), int(sys.argv[2]))
