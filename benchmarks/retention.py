"""RETENTION: a million old rows and more are deleted while work comes in all the time."""

import threading
import time
from collections.abc import Callable
from typing import Any

from benchmarks.copies import BASE, Connection, make_old_jobs
from benchmarks.description import Description, Options, at_most
from benchmarks.report import Result, median, others_note
from benchmarks.stand import CONTROL, FLEET, Stand, Wanted, standing
from benchmarks.throughput import noop_job
from benchmarks.usage import Others, cpu_seconds, spent

CELLS = 4
SMALL_JOBS = 100_000
LARGE_JOBS, LARGE_TASKS = 50, 4_000
EVERY_SECONDS = 0.2
QUIET_SECONDS = 30.0
WAIT_SECONDS = 270.0

_PLACED = """
SELECT 1000 * extract(epoch FROM a.created_at - j.created_at)::float
FROM controlplane_job j JOIN controlplane_attempt a ON a.job_id = j.id
WHERE j.id < %s AND j.created_at >= to_timestamp(%s) ORDER BY 1
"""
_TABLES = ("job", "taskgroup", "task", "attempt", "transition")


ABOUT = Description(
    id="RETENTION",
    title="a million old rows",
    claim="The deletion of old rows does not delay new work.",
    workload=f"{SMALL_JOBS:,} jobs of one task and {LARGE_JOBS} of {LARGE_TASKS:,}, with attempts"
    " and history (copies of one real job), expire at once, while a new job arrives five times a"
    " second. All processes run with default settings. The short size has a tenth of the jobs.",
    peer="None.",
    method="Time from a submission until its placement, and the longest time between two ticks of"
    " convergence, before and during the deletion. Always one run.",
    budget_seconds=100,
    targets=(
        at_most(
            1.5,
            "p99 until a job is placed, during / before",
            lambda it: it["during"]["placed_p99_ms"] / it["before"]["placed_p99_ms"],
        ),
    ),
)


def run(options: Options) -> Result:
    """Delete once: it takes minutes, and the figures are many."""
    small = options.pick(tiny=500, short=SMALL_JOBS // 10, full=SMALL_JOBS)
    large = options.pick(tiny=1, short=LARGE_JOBS // 10, full=LARGE_JOBS)
    quiet = options.pick(tiny=2.0, short=15.0, full=QUIET_SECONDS)
    result = Result(
        "RETENTION",
        f"delete {small:,} jobs of one task and {large} of {LARGE_TASKS:,}, under load",
        ("", "before", "during"),
    )
    with standing(Wanted(cells=CELLS)) as stand, stand.connect() as connection:
        make_old_jobs(stand, connection, [(large, LARGE_TASKS), (small, 1)])
        stand.wait_until(lambda: _deletes(connection), "convergence deletes", seconds=60)
        before = _watch(stand, connection, _after(quiet))
        rows_before = _count(connection)
        connection.execute(
            "UPDATE controlplane_job SET expires_at = now() - interval '1 hour' WHERE id >= %s",
            [BASE],
        )
        during = _watch(stand, connection, lambda: not _is_left(connection))
        left = {name: n for name, n in _count(connection).items() if n}
    if left:
        raise RuntimeError(f"jobs are gone, and rows are left: {left}")
    rows = sum(rows_before.values())
    for name, text in (
        ("placed_p50_ms", "a job waits for its place, median ms"),
        ("placed_p99_ms", "p99 ms"),
        ("placed_max_ms", "longest ms"),
        ("tick_gap_seconds", "longest time between two ticks of convergence, s"),
    ):
        result.rows.append((text, f"{before[name]:,.1f}", f"{during[name]:,.1f}"))
    rate = rows / during["seconds"]
    result.rows.append(("rows deleted a second", "", f"{rate:,.0f}"))
    result.notes.append(
        f"{rows:,} rows went in {during['seconds']:.0f} s: "
        + ", ".join(f"{name} {count:,}" for name, count in rows_before.items())
    )
    used = ", ".join(f"{name} {seconds:.1f}" for name, seconds in during["cpu_seconds"].items())
    result.notes.append(f"Seconds of CPU meanwhile: {used}.")
    result.notes.append(others_note([during["cores_used_by_others"]]))
    result.figures = {"rows": rows_before, "before": before, "during": during}
    return result


def _after(seconds: float) -> Callable[[], bool]:
    ends = time.monotonic() + seconds
    return lambda: time.monotonic() >= ends


def _watch(stand: Stand, connection: Connection, is_over: Callable[[], bool]) -> dict[str, Any]:
    """A steady small load until `is_over`, and what was noticed of it."""
    stop, began, begin = threading.Event(), time.monotonic(), time.time()
    submitter = threading.Thread(target=_submit, args=(stand, stop))
    cpu, others = cpu_seconds(stand.pids), Others(stand.pids)
    gaps, last = [0.0], time.monotonic()
    seen = None
    submitter.start()
    try:
        while not is_over():
            found = connection.execute(
                "SELECT started_at FROM controlplane_tickstate WHERE name = 'convergence'"
            ).fetchone()
            now = time.monotonic()
            if found != seen:
                gaps.append(now - last if seen else 0.0)
                seen, last = found, now
            stand.check_alive()
            if now - began > WAIT_SECONDS:
                raise RuntimeError(f"after {WAIT_SECONDS:g} s rows are left: {_count(connection)}")
            time.sleep(0.1)
        seconds = time.monotonic() - began
    finally:
        stop.set()
        submitter.join()
    placed = [ms for (ms,) in connection.execute(_PLACED, [BASE, begin]).fetchall()]
    processes = ("postgres", *CONTROL, FLEET)
    used = spent(cpu, cpu_seconds(stand.pids))
    return {
        "seconds": seconds,
        "jobs_placed": len(placed),
        "placed_p50_ms": median(placed),
        "placed_p99_ms": placed[int(len(placed) * 0.99)],
        "placed_max_ms": placed[-1],
        "tick_gap_seconds": max(gaps),
        "cpu_seconds": {name: used[name] for name in processes},
        "cores_used_by_others": others.cores(),
    }


def _submit(stand: Stand, stop: threading.Event) -> None:
    while not stop.wait(EVERY_SECONDS):
        stand.post("/api/v1/jobs", noop_job(1))


def _count(connection: Connection) -> dict[str, int]:
    counts = {}
    for table in _TABLES:
        column = "id" if table == "job" else "job_id"
        found = connection.execute(
            f"SELECT count(*) FROM controlplane_{table} WHERE {column} >= %s", [BASE]
        ).fetchone()
        counts[table] = int(found[0]) if found else 0
    return counts


def _deletes(connection: Connection) -> bool:
    """Return whether ticks delete: not in the first lease after convergence has started."""
    found = connection.execute(
        """
        SELECT finished_at IS NOT NULL AND coalesce(hold_until, '-infinity') < now()
        FROM controlplane_tickstate WHERE name = 'convergence'
        """
    ).fetchone()
    return found == (True,)


def _is_left(connection: Connection) -> bool:
    found = connection.execute(
        "SELECT EXISTS (SELECT 1 FROM controlplane_job WHERE id >= %s)", [BASE]
    ).fetchone()
    return found == (True,)
