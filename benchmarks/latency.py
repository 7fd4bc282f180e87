"""B6: the latency from the commit of a submission to the start call, idle and under load."""

import threading
import time

from benchmarks.description import Description, Figures, Options, Target, at_most
from benchmarks.generator import SETTINGS, Load, OpenLoop
from benchmarks.report import Result, median, others_note, quantile
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


LOAD_PER_SECOND = 800
LEAD_SECONDS = 2.0
QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0))


def _target(key: str, name: str, bound: float, quantile_name: str) -> Target:
    def read(figures: Figures) -> float:
        return median(figures[key][quantile_name])

    return at_most(bound, f"{quantile_name}, {name}", read, "ms")


ABOUT = Description(
    id="B6",
    title="idle latency",
    claim="A task starts within 12 ms of its submission, also while others submit.",
    workload=f"{SUBMISSIONS} submissions of one task over REST, one each 50 ms, on {CELLS} cells:"
    f" while nothing else happens, and while an open-loop generator submits {LOAD_PER_SECOND}"
    " tasks a second (as in B13).",
    peer="Published for whole task queues: 12 ms and 32 ms at 800 submissions a second (awa),"
    " below 25 ms (Hatchet).",
    method="Time from the commit of the submission (`track_commit_timestamp`, enabled only here)"
    " until the driver of the cell receives the start call, by the clock of the one machine.",
    budget_seconds=40,
    targets=(
        _target("milliseconds", "idle", 12, "p50"),
        _target("milliseconds", "idle", 32, "p99"),
        _target("under_load", f"under {LOAD_PER_SECOND}/s", 12, "p50"),
        _target("under_load", f"under {LOAD_PER_SECOND}/s", 32, "p99"),
    ),
)


def run(options: Options) -> Result:
    """Submit at a steady pace into an idle system, then into one under load."""
    count = options.pick(tiny=10, short=SUBMISSIONS, full=SUBMISSIONS)
    rate = options.pick(tiny=40, short=LOAD_PER_SECOND, full=LOAD_PER_SECOND)
    result = Result(
        "B6",
        f"latency, commit to start call, {count} submissions, one each 50 ms",
        ("", "p50 ms", "p90 ms", "p99 ms", "max ms"),
    )
    idle: list[list[float]] = []
    loaded: list[list[float]] = []
    busy: list[float] = []
    options_of_database = ["track_commit_timestamp=on"]
    wanted = Wanted(cells=CELLS, database_options=options_of_database, settings=SETTINGS)
    with standing(wanted) as stand:
        _submit(stand, min(WARM_UPS, count))
        for _ in range(options.runs):
            others = Others(stand.pids)
            idle.append(_submit(stand, count))
            busy.append(others.cores())
            time.sleep(1.0)
            loaded.append(_submit_under_load(stand, count, rate))
            time.sleep(1.0)
    found = {
        key: {name: [quantile(values, share) for values in of_runs] for name, share in QUANTILES}
        for key, of_runs in (("milliseconds", idle), ("under_load", loaded))
    }
    for title, key in (("idle", "milliseconds"), (f"under {rate} tasks/s", "under_load")):
        result.rows.append((title, *(f"{median(values):.1f}" for values in found[key].values())))
    result.notes.append(others_note(busy))
    result.figures = {**found, "runs": idle, "loaded_runs": loaded, "cores_used_by_others": busy}
    return result


def _submit_under_load(stand: Stand, count: int, rate: int) -> list[float]:
    """Submit as `_submit` does while the generator submits at a fixed rate."""
    seconds = LEAD_SECONDS + count * EVERY_SECONDS + LEAD_SECONDS
    loop = OpenLoop(stand, Load(rate, seconds, jobs_each=max(rate // 40, 1), tasks_each=1))
    faults: list[BaseException] = []

    def offer() -> None:
        try:
            loop.run()
        except BaseException as fault:
            faults.append(fault)

    thread = threading.Thread(target=offer, daemon=True)
    thread.start()
    time.sleep(LEAD_SECONDS)
    values = _submit(stand, count)
    thread.join()
    if faults:
        raise faults[0]
    return values


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
