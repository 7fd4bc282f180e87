"""UNPLACEABLE: what a placement pass costs while 100,000 tasks wait that no cell can take.

The pass is the tick's own, on the stand's PostgreSQL: the first one finds out and writes why they
wait, the later ones find that nothing has changed.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.report import Result, median, others_note
from benchmarks.stand import Stand, Wanted, standing
from benchmarks.usage import Others

CELLS = 100
TASKS = 100_000
BATCH = 500
LATER = 10
WAIT_SECONDS = 120.0
_SETTINGS = {"CELLRUN_MAX_UNFINISHED_TASKS_PER_USER": "1000000"}

WORKLOADS = (
    ("10 jobs of 10,000", 10, 1),
    ("100,000 jobs of one shape", TASKS, 1),
    ("1,000 jobs, 1,000 shapes", 1_000, 1_000),
)
"""How the table calls it, how many jobs, how many shapes they have."""


def run(runs: int) -> Result:
    """Each workload on cells too small for it, and on full ones; `runs`: of ten passes each."""
    result = Result(
        "UNPLACEABLE",
        f"a placement pass while {TASKS:,} tasks wait in vain, {CELLS} cells",
        ("", "first pass ms", "later passes ms", "worst", "CPU ms", "at most"),
    )
    found: dict[str, Any] = {}
    for name, jobs, shapes in WORKLOADS:
        for is_full in (False, True):
            title = f"{name}, {'cells are full' if is_full else 'larger than any cell'}"
            one = found[title] = _measure(jobs, shapes, is_full=is_full, passes=LATER * runs)
            later = one["later_ms"]
            result.rows.append(
                (
                    title,
                    f"{one['first_ms']:.0f}",
                    f"{median(later):.0f}",
                    f"{max(later):.0f}",
                    f"{median(one['later_cpu_ms']):.0f}",
                    "100",
                )
            )
    result.notes.append("CPU: of the process that places; PostgreSQL's is in the time, not in it.")
    result.notes.append(others_note(one["cores_used_by_others"] for one in found.values()))
    result.figures = found
    return result


def _measure(jobs: int, shapes: int, *, is_full: bool, passes: int) -> dict[str, Any]:
    with standing(Wanted(cells=CELLS, settings=_SETTINGS)) as stand:
        if is_full:
            _fill(stand)
        stand.stop("placement")
        for batch in _batches(jobs, shapes, is_full=is_full):
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


def _batches(jobs: int, shapes: int, *, is_full: bool) -> Iterator[Sequence[dict[str, Any]]]:
    bodies = []
    for number in range(jobs):
        body = _job(number % shapes, TASKS // jobs)
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
