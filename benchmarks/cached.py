"""CACHE: tasks with a result in the cache."""

import time
from typing import Any

import psycopg

from benchmarks.description import Description, Options, at_most
from benchmarks.report import Result, median, others_note
from benchmarks.stand import CONTROL, Stand, Wanted, standing
from benchmarks.usage import Others, cpu_seconds, spent

CELLS = 100
TASKS = 10_000
SINGLE = 100
EVERY_SECONDS = 0.05
WAIT_SECONDS = 180.0
# The inbox's acknowledgements and the storing of results pass by.
REST_SECONDS = 3.0

_STORED = "SELECT count(*) FROM controlplane_cacheentry WHERE evicted_at IS NULL"
_ENDED = "SELECT count(*) FROM controlplane_job WHERE id = ANY(%s) AND finished_at IS NOT NULL"
_HITS = "SELECT count(*) FROM controlplane_task WHERE job_id = ANY(%s) AND cache_entry_id > 0"
_MILLISECONDS = """
SELECT 1000 * extract(epoch FROM
    max(pg_xact_commit_timestamp(xmin)) FILTER (WHERE reason = 'cache_hit')
    - min(pg_xact_commit_timestamp(xmin)) FILTER (WHERE reason = 'submitted'))::float
FROM controlplane_transition WHERE job_id = ANY(%s) GROUP BY job_id ORDER BY 1
"""

Connection = psycopg.Connection[tuple[Any, ...]]


ABOUT = Description(
    id="CACHE",
    title="results of identical tasks",
    claim="A task with a stored result succeeds in a fraction of a millisecond.",
    workload=f"A job of {TASKS:,} tasks and one of a single task run once on a fleet of {CELLS}"
    f" cells; then the same jobs are submitted again, the single one {SINGLE} times at intervals"
    " of 50 ms.",
    peer="None.",
    method="Time from the commit of the submission to the commit of the success"
    " (`track_commit_timestamp`).",
    budget_seconds=45,
    targets=(
        at_most(3000, "all hits of the large job", lambda it: median(it["whole"]), "ms"),
        at_most(5, "each of these", lambda it: median(it["whole"]) / it.get("tasks", TASKS), "ms"),
    ),
)


def run(options: Options) -> Result:
    """Fill the cache, then measure single hits and a job of hits."""
    result = Result(
        "CACHE",
        "results from the cache, commit of the submission to commit of the success",
        ("", "median", "worst"),
    )
    single: list[float] = []
    whole: list[float] = []
    used: list[dict[str, float]] = []
    busy: list[float] = []
    tasks = options.pick(tiny=100, short=TASKS, full=TASKS)
    single_hits = options.pick(tiny=5, short=SINGLE, full=SINGLE)
    timestamps = ["track_commit_timestamp=on"]
    with (
        standing(Wanted(cells=CELLS, database_options=timestamps)) as stand,
        stand.connect() as connection,
    ):
        _fill(stand, connection, tasks)
        for _ in range(options.runs):
            others = Others(stand.pids)
            single += _measure(stand, connection, [(1, EVERY_SECONDS)] * single_hits)
            before = cpu_seconds(stand.pids)
            whole += _measure(stand, connection, [(tasks, 0.0)])
            used.append(spent(before, cpu_seconds(stand.pids)))
            busy.append(others.cores())
    result.rows += [
        ("one hit, ms", f"{median(single):.1f}", f"{max(single):.1f}"),
        (f"{tasks:,} hits of one job, ms", f"{median(whole):.0f}", f"{max(whole):.0f}"),
        ("each of these, ms", f"{median(whole) / tasks:.2f}", f"{max(whole) / tasks:.2f}"),
    ]
    cpu = {name: median(one[name] for one in used) for name in ("postgres", *CONTROL)}
    spent_by = ", ".join(f"{name} {seconds:.2f}" for name, seconds in cpu.items())
    result.notes.append(f"Seconds of CPU for {tasks:,} hits: {spent_by}.")
    result.notes.append(others_note(busy))
    result.figures = {"tasks": tasks, "single": single, "whole": whole, "cpu": used}
    result.figures["cores_used_by_others"] = busy
    return result


def _job(tasks: int) -> dict[str, Any]:
    return {
        "name": "cached",
        "replicas": tasks,
        "task_type": "process",
        "command": ["noop"],
        "resources": {"cpu": 0.01, "memory": "16Mi"},
        "cache": {"enabled": True},
    }


def _fill(stand: Stand, connection: Connection, large: int) -> None:
    """Run both jobs once, until all results are stored."""
    for tasks in (1, large):
        stand.post("/api/v1/jobs", _job(tasks))

    def is_stored() -> bool:
        return connection.execute(_STORED).fetchone() == (large + 1,)

    stand.wait_until(is_stored, "all results are stored", seconds=WAIT_SECONDS)
    time.sleep(REST_SECONDS)


def _measure(
    stand: Stand, connection: Connection, submissions: list[tuple[int, float]]
) -> list[float]:
    """Submit jobs of so many tasks with pauses between them; return the milliseconds of each."""
    jobs = []
    for tasks, pause in submissions:
        jobs.append(stand.post("/api/v1/jobs", _job(tasks))["id"])
        time.sleep(pause)

    def have_ended() -> bool:
        return connection.execute(_ENDED, [jobs]).fetchone() == (len(jobs),)

    stand.wait_until(have_ended, "all jobs have ended", seconds=WAIT_SECONDS)
    expected = (sum(tasks for tasks, _ in submissions),)
    if connection.execute(_HITS, [jobs]).fetchone() != expected:
        raise RuntimeError(f"not all of the {expected[0]} tasks were hits")
    return [value for (value,) in connection.execute(_MILLISECONDS, [jobs])]
