"""B6: how long a task waits in an idle system, from submission's commit to the driver's start call.

The commit's instant is PostgreSQL's own (`track_commit_timestamp`), the start call's is what the
memory driver noted when it was called; one machine, one clock.
"""

import time

from benchmarks.report import Result, median, others_note
from benchmarks.stand import Stand, Wanted, standing
from benchmarks.throughput import noop_job
from benchmarks.usage import Others

CELLS = 100
SUBMISSIONS = 100
EVERY_SECONDS = 0.05
WARM_UPS = 20
WAIT_SECONDS = 60.0

_LATENCIES = """
SELECT 1000 * extract(epoch FROM a.started_at - pg_xact_commit_timestamp(t.xmin))::float
FROM controlplane_transition t JOIN controlplane_attempt a ON a.job_id = t.job_id
WHERE t.reason = 'submitted' AND t.job_id = ANY(%s) AND a.started_at IS NOT NULL
ORDER BY 1
"""


def run(runs: int) -> Result:
    """Submissions at a steady pace into a system that has nothing else to do."""
    result = Result(
        "B6",
        f"idle latency, commit to start call, {SUBMISSIONS} submissions, one each 50 ms",
        ("", "p50 ms", "p90 ms", "p99 ms", "max ms"),
    )
    found: list[list[float]] = []
    busy: list[float] = []
    with standing(Wanted(cells=CELLS, database_options=["track_commit_timestamp=on"])) as stand:
        _submit(stand, WARM_UPS)
        for _ in range(runs):
            others = Others(stand.pids)
            found.append(_submit(stand, SUBMISSIONS))
            busy.append(others.cores())
            time.sleep(1.0)
    quantiles = {
        name: [_quantile(values, share) for values in found]
        for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0))
    }
    result.rows.append(("Cellrun", *(f"{median(values):.1f}" for values in quantiles.values())))
    result.notes.append(others_note(busy))
    result.figures = {"milliseconds": quantiles, "runs": found, "cores_used_by_others": busy}
    return result


def _submit(stand: Stand, count: int) -> list[float]:
    jobs = []
    due = time.monotonic()
    for _ in range(count):
        time.sleep(max(due - time.monotonic(), 0.0))
        due += EVERY_SECONDS
        jobs.append(stand.post("/api/v1/jobs", noop_job(1))["id"])
    values: list[float] = []
    with stand.connect() as connection:

        def all_started() -> bool:
            values[:] = [value for (value,) in connection.execute(_LATENCIES, [jobs])]
            return len(values) == count

        stand.wait_until(all_started, "all tasks have started", seconds=WAIT_SECONDS)
    return values


def _quantile(values: list[float], share: float) -> float:
    """The smallest value that `share` of the sorted values do not pass."""
    return values[max(-(-int(share * 1000) * len(values) // 1000) - 1, 0)]
