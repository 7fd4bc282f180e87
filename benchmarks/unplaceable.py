"""UNPLACEABLE: the cost of a placement pass while 100,000 tasks wait that no cell can take."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.description import Description, Figures, Options, at_most
from benchmarks.report import Result, median, others_note
from benchmarks.stand import Stand, Wanted, standing
from benchmarks.usage import Others

CELLS = 100
TASKS = 100_000
BATCH = 500
LATER = 10
WAIT_SECONDS = 120.0
_SETTINGS = {"CELLRUN_MAX_UNFINISHED_TASKS_PER_USER": "1000000"}

WORKLOADS = (("10 jobs", 10, 1), ("jobs of one task", TASKS, 1), ("1,000 shapes", 1_000, 1_000))
"""Titles, numbers of jobs and of shapes at the full size."""


def _slowest(figures: Figures, key: str) -> float:
    values = [one[key] for one in figures.values()]
    return max(median(value) if isinstance(value, list) else value for value in values)


ABOUT = Description(
    id="UNPLACEABLE",
    title="passes without a match",
    claim="Tasks that fit nowhere do not slow placement.",
    workload=f"{TASKS:,} tasks wait that no cell can take: they are larger than each of {CELLS}"
    " cells, or all cells are full. The short size has a twentieth of the tasks and does not run"
    " the first workload.",
    peer="None.",
    method="Duration of a full pass of the tick on the PostgreSQL of the stand. Only the first"
    f" pass writes reasons; {LATER} later ones find that nothing has changed. CPU is that of the"
    " process that places; the time of PostgreSQL is in the duration.",
    budget_seconds=125,
    targets=(
        at_most(100, "first pass, slowest row", lambda it: _slowest(it, "first_ms"), "ms"),
        at_most(100, "later passes, slowest row", lambda it: _slowest(it, "later_ms"), "ms"),
    ),
)


def run(options: Options) -> Result:
    """Measure each workload on cells too small for it, and on full ones; ten passes each run."""
    share = options.pick(tiny=1000, short=20, full=1)
    workloads = options.pick(tiny=WORKLOADS[2:], short=WORKLOADS[1:], full=WORKLOADS)
    tasks, passes = TASKS // share, options.pick(tiny=2, short=LATER, full=LATER) * options.runs
    result = Result(
        "UNPLACEABLE",
        f"a placement pass while {tasks:,} tasks wait in vain, {CELLS} cells",
        ("", "first pass ms", "later passes ms", "worst", "CPU ms"),
    )
    found: dict[str, Any] = {}
    for name, most_jobs, most_shapes in workloads:
        for is_full in (False, True):
            jobs, shapes = min(most_jobs, tasks), min(most_shapes, tasks)
            title = f"{name}, {'cells are full' if is_full else 'larger than any cell'}"
            one = found[title] = _measure(tasks, jobs, shapes, is_full, passes)
            later = one["later_ms"]
            result.rows.append(
                (
                    title,
                    f"{one['first_ms']:.0f}",
                    f"{median(later):.0f}",
                    f"{max(later):.0f}",
                    f"{median(one['later_cpu_ms']):.0f}",
                )
            )
    result.notes.append(others_note(one["cores_used_by_others"] for one in found.values()))
    result.figures = found
    return result


def _measure(tasks: int, jobs: int, shapes: int, is_full: bool, passes: int) -> dict[str, Any]:
    with standing(Wanted(cells=CELLS, settings=_SETTINGS)) as stand:
        if is_full:
            _fill(stand)
        stand.stop("placement")
        for batch in _batches(tasks, jobs, shapes, is_full):
            stand.post("/api/v1/jobs:batch", batch)
        others = Others(stand.pids)
        timed = json.loads(stand.run_module("benchmarks.passes", str(1 + passes)))
        if any(one["placed"] != 0 for one in timed):
            raise RuntimeError(f"something was placed: {timed}")
        return {
            "first_ms": 1000 * timed[0]["seconds"],
            "later_ms": [1000 * one["seconds"] for one in timed[1:]],
            "later_cpu_ms": [1000 * one["cpu"] for one in timed[1:]],
            "cores_used_by_others": others.cores(),
        }


def _fill(stand: Stand) -> None:
    """One task on each cell that takes all of its cpu and runs on."""
    body = {**_job(0, CELLS), "command": ["sleep", "100000"]}
    body["resources"] = {"cpu": 16, "memory": "1Gi", "disk": "1Mi"}
    job_id = stand.post("/api/v1/jobs", body)["id"]
    statement = "SELECT count(*) FROM controlplane_task WHERE job_id = %s AND state = 3"
    with stand.connect() as connection:

        def all_run() -> bool:
            return connection.execute(statement, [job_id]).fetchone() == (CELLS,)

        stand.wait_until(all_run, "all cells are full", seconds=WAIT_SECONDS)


def _batches(
    tasks: int, jobs: int, shapes: int, is_full: bool
) -> Iterator[Sequence[dict[str, Any]]]:
    bodies = []
    for number in range(jobs):
        body = _job(number % shapes, tasks // jobs)
        body["resources"]["cpu"] = 1 if is_full else 100
        body["allow_unsatisfiable"] = True
        bodies.append(body)
    for first in range(0, jobs, BATCH):
        yield bodies[first : first + BATCH]


def _job(shape: int, replicas: int) -> dict[str, Any]:
    return {
        "name": "waits",
        "replicas": replicas,
        "task_type": "process",
        "command": ["noop"],
        "resources": {"cpu": 1, "memory": f"{16 + shape}Mi", "disk": "1Mi"},
    }
