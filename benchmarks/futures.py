"""FUTURES: no-op commands through the Python `Executor`, against jobs of the same tasks (B1)."""

import json
import os
import resource
import subprocess
import sys
import time
from typing import Any

import psycopg

from benchmarks.description import Curve, Description, Figures, Options, Points, at_least, at_most
from benchmarks.report import Result, median, others_note
from benchmarks.stand import Stand, Wanted, standing
from benchmarks.throughput import TASKS_PER_JOB, WARM_UP_TASKS, submit_and_wait
from benchmarks.usage import Others
from cellrun import Command, Executor

CELLS = 100
FUTURES = 10_000
FEW = 1_000
SMALL = {"cpu": 0.01, "memory": "16Mi", "disk": "1Mi"}


def _ratio(figures: Figures) -> float:
    return median(one["rate"] for one in figures["futures"]) / median(figures["jobs"])


def _growth(figures: Figures) -> float:
    few: float = figures["few"]["memory_mib"]
    return float(figures["many"]["memory_mib"]) / few


def _lines(figures: Figures) -> dict[str, Points]:
    tasks = figures["tasks"]
    middle = median(one["rate"] for one in figures["futures"])
    points = [
        (tasks / 10, figures["few"]["rate"]),
        (tasks, middle),
        (tasks * 3, figures["many"]["rate"]),
    ]
    return {"futures": points, "jobs": [(x, median(figures["jobs"])) for x, _ in points]}


ABOUT = Description(
    id="FUTURES",
    title="commands through the Python executor",
    claim="Futures of single commands have half the rate of jobs, and memory of the client is"
    " flat.",
    workload=f"{FUTURES:,} futures of no-op commands from one program through `Executor` on"
    f" {CELLS} cells.",
    peer=f"Two jobs of {TASKS_PER_JOB:,} such tasks (B1) on the same stand.",
    method="The rounds alternate on one stand. A process of its own has the futures, for its"
    " memory and CPU. The first futures of a program wait for its stream of events and for the"
    f" submission, so that {FEW:,} are slower.",
    budget_seconds=60,
    targets=(
        at_least(0.5, "rate / rate of the jobs", _ratio),
        at_most(1.1, "memory of the client, 30,000 / 1,000 futures", _growth),
    ),
    curves=(Curve("rate", "futures", "tasks/s", _lines, is_logarithmic=True),),
)


def run(options: Options) -> Result:
    """Measure rates of both, and the memory of the client at 1,000, 10,000 and 30,000 futures."""
    tasks = options.pick(tiny=100, short=FUTURES, full=FUTURES)
    columns = ("", "tasks/s", "of the jobs", "client CPU ms", "client memory MiB")
    title = f"{tasks:,} futures of no-op commands on {CELLS} cells"
    result = Result("FUTURES", title, columns)
    jobs: list[float] = []
    found: list[dict[str, float]] = []
    with standing(Wanted(cells=CELLS)) as stand, stand.connect() as connection:
        submit_and_wait(stand, connection, [WARM_UP_TASKS])
        others = Others(stand.pids)
        few = _in_a_process(stand, tasks // 10, 1)
        for _ in range(options.runs):
            jobs.append(_rate_of_jobs(stand, connection, tasks))
            found.append(_in_a_process(stand, tasks, 1))
        many = _in_a_process(stand, tasks, 3)
        cores = others.cores()
    yardstick = median(jobs)
    rate = median(one["rate"] for one in found)
    result.rows = [
        (f"2 jobs of {tasks:,} tasks", f"{yardstick:,.0f}", "1.0", "", ""),
        (f"{tasks // 10:,} futures", *_cells(few, yardstick)),
        (
            f"{tasks:,} futures",
            f"{rate:,.0f}",
            f"{rate / yardstick:.2f}",
            f"{median(one['cpu_ms'] for one in found):.3f}",
            f"{median(one['memory_mib'] for one in found):.0f}",
        ),
        (f"3 times {tasks:,} futures", *_cells(many, yardstick)),
    ]
    result.notes.append(others_note([cores]))
    result.figures = {"tasks": tasks, "jobs": jobs, "futures": found, "few": few, "many": many}
    return result


def _cells(one: dict[str, float], yardstick: float) -> tuple[str, str, str, str]:
    return (
        f"{one['rate']:,.0f}",
        f"{one['rate'] / yardstick:.2f}",
        f"{one['cpu_ms']:.3f}",
        f"{one['memory_mib']:.0f}",
    )


def _rate_of_jobs(
    stand: Stand, connection: psycopg.Connection[tuple[Any, ...]], tasks: int
) -> float:
    seconds = submit_and_wait(stand, connection, [tasks, tasks])
    time.sleep(2.0)  # what is left over passes
    return 2 * tasks / seconds


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
