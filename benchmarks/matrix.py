"""B2: 10,000 tasks in few jobs or in many (Volcano's matrix)."""

import time
from typing import Any

import psycopg

from benchmarks.description import Curve, Description, Figures, Options, Points, at_most
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


def _medians(figures: Figures, what: str) -> dict[int, float]:
    """Return the seconds by number of jobs."""
    return {
        int(jobs): median(one[f"{what}_seconds"] for one in timed)
        for jobs, timed in figures["runs"].items()
    }


def _lines(figures: Figures) -> dict[str, Points]:
    return {what: sorted(_medians(figures, what).items()) for what in ("submitted", "finished")}


ABOUT = Description(
    id="B2",
    title="many jobs or few",
    claim="The division of tasks into jobs does not matter.",
    workload=f"{TASKS:,} no-op tasks, divided into 10,000, 500, 20 jobs or one job (Volcano's"
    f" matrix), on {CELLS} cells. The short size has half the tasks.",
    peer="Volcano publishes 180 to 250 s for 10,000 jobs of one pod, with a Kubernetes API server.",
    method=f"Jobs are submitted by `jobs:batch` with up to {BATCH:,} jobs per request, one"
    " request after the other. Time from the first request until every job is SUCCEEDED; the"
    " shapes take turns.",
    budget_seconds=60,
    targets=(
        at_most(
            5,
            "seconds of the slowest shape",
            lambda it: max(_medians(it, "finished").values()),
            "s",
        ),
        at_most(2, "slowest / fastest shape", lambda it: it["slowest_of_fastest"]),
    ),
    curves=(Curve("jobs", "jobs", "seconds", _lines, is_logarithmic=True),),
)


def run(options: Options) -> Result:
    """Run each number of jobs in turns."""
    tasks = options.pick(tiny=200, short=TASKS // 2, full=TASKS)
    shapes = sorted({min(jobs, tasks) for jobs in JOBS}, reverse=True)
    result = Result(
        "B2",
        f"whole life of {tasks:,} no-op tasks in many jobs or few, {CELLS} cells",
        ("jobs x tasks", "submitted s", "finished s", "worst", "tasks/s"),
    )
    found: dict[int, list[dict[str, float]]] = {jobs: [] for jobs in shapes}
    busy = []
    with standing(Wanted(cells=CELLS)) as stand, stand.connect() as connection:
        submit_and_wait(stand, connection, [WARM_UP_TASKS])
        for _ in range(options.runs):
            others = Others(stand.pids)
            for jobs in shapes:
                found[jobs].append(_one_run(stand, connection, jobs, tasks // jobs))
                time.sleep(PAUSE_SECONDS)  # acknowledgements and events pass
            busy.append(others.cores())
    finished = {
        jobs: median(one["finished_seconds"] for one in timed) for jobs, timed in found.items()
    }
    for jobs, timed in found.items():
        result.rows.append(
            (
                f"{jobs:,} x {tasks // jobs:,}",
                f"{median(one['submitted_seconds'] for one in timed):.2f}",
                f"{finished[jobs]:.2f}",
                f"{max(one['finished_seconds'] for one in timed):.2f}",
                f"{tasks / finished[jobs]:,.0f}",
            )
        )
    ratio = max(finished.values()) / min(finished.values())
    result.notes.append(f"Slowest / fastest: {ratio:.2f}.")
    result.notes.append(others_note(busy))
    result.figures = {"runs": found, "slowest_of_fastest": ratio, "cores_used_by_others": busy}
    return result


def _one_run(stand: Stand, connection: Connection, jobs: int, size: int) -> dict[str, float]:
    """Seconds from the first request until the last answer, and until every job SUCCEEDED."""
    bodies = [noop_job(size) for _ in range(jobs)]
    began, ids = time.perf_counter(), list[int]()
    for first in range(0, jobs, BATCH):
        answer = stand.post("/api/v1/jobs:batch", bodies[first : first + BATCH])
        ids += [item["id"] for item in answer["results"]]
    submitted = time.perf_counter() - began
    # One row as long as the last job runs: counting all of them costs the machine more than a job.
    last = "SELECT finished_at IS NULL FROM controlplane_job WHERE id = %s"
    statement = (
        "SELECT count(*) FILTER (WHERE finished_at IS NULL), count(*) FILTER (WHERE state = 4)"
        " FROM controlplane_job WHERE id >= %s AND id <= %s"
    )
    succeeded = 0

    def is_over() -> bool:
        nonlocal succeeded
        if connection.execute(last, [ids[-1]]).fetchone() == (True,):
            return False
        row = connection.execute(statement, [ids[0], ids[-1]]).fetchone()
        still_open, succeeded = row or (1, 0)
        return still_open == 0

    stand.wait_until(is_over, f"{jobs} jobs are finished", seconds=WAIT_SECONDS)
    finished = time.perf_counter() - began
    if succeeded != jobs:
        raise RuntimeError(f"only {succeeded} of {jobs} jobs succeeded")
    return {"submitted_seconds": submitted, "finished_seconds": finished}
