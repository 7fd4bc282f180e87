"""B17: the cost of a task while tasks, cells, waiting jobs or history grow."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.copies import make_old_jobs
from benchmarks.description import Curve, Description, Figures, Options, Points, Target, at_most
from benchmarks.generator import SETTINGS, Connection
from benchmarks.report import Result, median, others_note
from benchmarks.stand import Stand, Wanted, standing
from benchmarks.throughput import WARM_UP_TASKS, submit_and_wait
from benchmarks.usage import Others, cpu_seconds, spent

CELLS = 100
TASKS = 10_000
IDLE_SECONDS, REST_SECONDS = 5.0, 1.5
# A fleet process has at most so many cells.
CELLS_PER_FLEET = 500
BATCH = 1_000
OLD_TASKS, ROWS_PER_TASK = 1_000, 3
DIMENSIONS = ("tasks", "cells", "waiting jobs", "rows of history")

Sizes = Mapping[str, Sequence[int]]
FULL: Sizes = {
    "tasks": (1_000, 10_000, 100_000, 1_000_000),
    "cells": (10, 100, 1_000, 5_000),
    "waiting jobs": (1, 1_000, 10_000, 100_000),
    "rows of history": (0, 1_000_000, 10_000_000, 50_000_000),
}
SHORT: Sizes = {
    "tasks": (1_000, 10_000, 30_000),
    "cells": (10, 200),
    "waiting jobs": (1, 2_000),
    "rows of history": (0, 300_000),
}
TINY: Sizes = {
    "tasks": (50, 100),
    "cells": (2, 4),
    "waiting jobs": (1, 10),
    "rows of history": (0, 3_000),
}


def _target(dimension: str) -> Target:
    def read(figures: Figures) -> float:
        points = figures["cpu_ms"][dimension]
        return float(points[-1][1] / points[0][1])

    return at_most(1.15, f"cost with most / fewest {dimension}", read)


def _curve(dimension: str) -> Curve:
    def read(figures: Figures) -> Mapping[str, Points]:
        points = figures["cpu_ms"][dimension]
        return {"all processes": [(max(size, 1), cost) for size, cost in points]}

    name = dimension.replace(" ", "-")
    return Curve(name, dimension, "CPU of a task, ms", read, is_logarithmic=True)


ABOUT = Description(
    id="B17",
    title="growth",
    claim="The cost of a task does not depend on the size of the installation.",
    workload=f"No-op tasks in jobs of up to {TASKS:,}: 1,000 to 1,000,000 of them; {TASKS:,} on"
    f" 10 to 5,000 cells, in fleet processes of {CELLS_PER_FLEET} cells; {TASKS:,} beside 1 to"
    " 100,000 jobs that wait for larger cells; and beside 0 to 50 million rows of history of"
    " ended jobs (copies of one real job). The short size ends at 30,000 tasks, 200 cells, 2,000"
    " jobs and 300,000 rows.",
    peer="None.",
    method="CPU of all processes (control plane, fleets, PostgreSQL, Redis) until 1.5 s after the"
    " last end, less that of the idle system, measured for 5 s before; divided by the tasks."
    " Median of the runs at each size. Cells have a stand for each size, the others share one.",
    budget_seconds=90,
    targets=tuple(_target(dimension) for dimension in DIMENSIONS),
    curves=tuple(_curve(dimension) for dimension in DIMENSIONS),
)


def run(options: Options) -> Result:
    """Measure the cost at each size of each dimension."""
    sizes = options.pick(tiny=TINY, short=SHORT, full=FULL)
    tasks = options.pick(tiny=50, short=TASKS, full=TASKS)
    idle = options.pick(tiny=1.0, short=IDLE_SECONDS, full=IDLE_SECONDS)
    busy: list[float] = []
    found: dict[str, list[tuple[int, float]]] = {dimension: [] for dimension in DIMENSIONS}

    def measure(stand: Stand, connection: Connection, dimension: str, size: int, n: int) -> None:
        others = Others(stand.pids)
        costs = [_find_cost(stand, connection, n, idle) for _ in range(options.runs)]
        found[dimension].append((size, median(costs)))
        busy.append(others.cores())

    for cells in sizes["cells"]:
        fleets = max(cells // CELLS_PER_FLEET, 1)
        wanted = Wanted(cells=cells, fleets=fleets, settings=SETTINGS)
        with standing(wanted) as stand, stand.connect() as connection:
            submit_and_wait(stand, connection, [min(WARM_UP_TASKS, tasks)])
            measure(stand, connection, "cells", cells, tasks)
    with standing(Wanted(cells=CELLS, settings=SETTINGS)) as stand, stand.connect() as connection:
        submit_and_wait(stand, connection, [min(WARM_UP_TASKS, tasks)])
        for size in sizes["tasks"]:
            measure(stand, connection, "tasks", size, size)
        for dimension, grow in _steps(stand, connection).items():
            before = 0
            for size in sizes[dimension]:
                grow(before, size)
                before = size
                measure(stand, connection, dimension, size, tasks)
    return _make_result(found, busy)


def _make_result(found: Mapping[str, list[tuple[int, float]]], busy: list[float]) -> Result:
    result = Result("B17", "cost of a task while the system grows", ("", "size", "CPU ms a task"))
    for dimension in DIMENSIONS:
        for size, cost in found[dimension]:
            result.rows.append((dimension, f"{size:,}", f"{cost:.3f}"))
    result.notes.append(others_note(busy))
    result.figures = {"cpu_ms": dict(found), "cores_used_by_others": busy}
    return result


def _find_cost(stand: Stand, connection: Connection, tasks: int, idle_seconds: float) -> float:
    """Return milliseconds of CPU for a task, without those of the idle system."""
    before = cpu_seconds(stand.pids)
    time.sleep(idle_seconds)
    idle = sum(spent(before, cpu_seconds(stand.pids)).values()) / idle_seconds
    before, began = cpu_seconds(stand.pids), time.perf_counter()
    whole, rest = divmod(tasks, TASKS)
    submit_and_wait(stand, connection, [TASKS] * whole + [rest] * bool(rest))
    time.sleep(REST_SECONDS)
    used = sum(spent(before, cpu_seconds(stand.pids)).values())
    return 1000 * (used - idle * (time.perf_counter() - began)) / tasks


def _steps(stand: Stand, connection: Connection) -> dict[str, Callable[[int, int], None]]:
    """Return the functions that let a dimension grow from one size to the next."""

    def add_history(before: int, size: int) -> None:
        rows = OLD_TASKS * ROWS_PER_TASK
        first, count = before // rows, (size - before) // rows
        if count:
            sizes = [(count, OLD_TASKS)]
            make_old_jobs(stand, connection, sizes, jobs=first, tasks=first * OLD_TASKS)

    def add_waiting(before: int, size: int) -> None:
        for number in range(before, size, BATCH):
            count = min(BATCH, size - number)
            stand.post("/api/v1/jobs:batch", [_waiting() for _ in range(count)])

    return {"rows of history": add_history, "waiting jobs": add_waiting}


def _waiting() -> dict[str, Any]:
    return {
        "name": "waits",
        "task_type": "process",
        "command": ["noop"],
        "resources": {"cpu": 100, "memory": "16Mi", "disk": "1Mi"},
        "allow_unsatisfiable": True,
    }
