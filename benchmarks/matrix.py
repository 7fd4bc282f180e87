"""B2: 10,000 tasks in few jobs or in many (Volcano's matrix): it must not matter.

Volcano publishes 180 to 250 s for 10,000 jobs of one pod, with a Kubernetes API server in between.
"""

import time
from typing import Any

import psycopg

from benchmarks.report import Result, median, others_note
from benchmarks.stand import Stand, Wanted, standing
from benchmarks.throughput import CELLS, WAIT_SECONDS, WARM_UP_TASKS, noop_job, submit_and_wait
from benchmarks.usage import Others

TASKS = 10_000
JOBS = (10_000, 500, 20, 1)
# Jobs that one request may bring.
BATCH = 1_000
PAUSE_SECONDS = 2.0

Connection = psycopg.Connection[tuple[Any, ...]]


def run(runs: int) -> Result:
    """Each number of jobs `runs` times, taking turns."""
    result = Result(
        "B2",
        f"whole life of {TASKS:,} no-op tasks in many jobs or few, {CELLS} cells",
        ("jobs x tasks", "submitted s", "finished s", "worst", "tasks/s", "at most s"),
    )
    found: dict[int, list[dict[str, float]]] = {jobs: [] for jobs in JOBS}
    busy = []
    with standing(Wanted(cells=CELLS)) as stand, stand.connect() as connection:
        submit_and_wait(stand, connection, [WARM_UP_TASKS])
        for _ in range(runs):
            others = Others(stand.pids)
            for jobs in JOBS:
                found[jobs].append(_one_run(stand, connection, jobs))
                time.sleep(PAUSE_SECONDS)  # acknowledgements and events pass
            busy.append(others.cores())
    finished = {jobs: median(one["finished"] for one in timed) for jobs, timed in found.items()}
    for jobs, timed in found.items():
        result.rows.append(
            (
                f"{jobs:,} x {TASKS // jobs:,}",
                f"{median(one['submitted'] for one in timed):.2f}",
                f"{finished[jobs]:.2f}",
                f"{max(one['finished'] for one in timed):.2f}",
                f"{TASKS / finished[jobs]:,.0f}",
                "5",
            )
        )
    ratio = max(finished.values()) / min(finished.values())
    result.notes.append(f"Slowest / fastest: {ratio:.2f} (at most 2).")
    result.notes.append(others_note(busy))
    result.figures = {"runs": found, "slowest_of_fastest": ratio, "cores_used_by_others": busy}
    return result


def _one_run(stand: Stand, connection: Connection, jobs: int) -> dict[str, float]:
    """Seconds from the first request until the last answer, and until every job SUCCEEDED."""
    bodies = [noop_job(TASKS // jobs) for _ in range(jobs)]
    began, ids = time.perf_counter(), list[int]()
    for first in range(0, jobs, BATCH):
        answer = stand.post("/api/v1/jobs:batch", bodies[first : first + BATCH])
        ids += [item["id"] for item in answer["results"]]
    submitted = time.perf_counter() - began
    statement = (
        "SELECT count(*) FILTER (WHERE finished_at IS NULL), count(*) FILTER (WHERE state = 4)"
        " FROM controlplane_job WHERE id >= %s AND id <= %s"
    )
    succeeded = 0

    def is_over() -> bool:
        nonlocal succeeded
        row = connection.execute(statement, [ids[0], ids[-1]]).fetchone()
        still_open, succeeded = row or (1, 0)
        return still_open == 0

    stand.wait_until(is_over, f"{jobs} jobs are finished", seconds=WAIT_SECONDS)
    finished = time.perf_counter() - began
    if succeeded != jobs:
        raise RuntimeError(f"only {succeeded} of {jobs} jobs succeeded")
    return {"submitted": submitted, "finished": finished}
