"""B13: load that is offered at a fixed rate, whatever the system makes of it."""

import os
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.description import Curve, Description, Figures, Options, Points, Target, at_most
from benchmarks.generator import SETTINGS, Load, OpenLoop, measure
from benchmarks.report import Result, median, others_note
from benchmarks.stand import Stand, Wanted, standing
from benchmarks.throughput import WARM_UP_TASKS, submit_and_wait
from benchmarks.usage import Others, cpu_seconds, spent

CELLS = 100
SLOW, FAST = "800/s", "5,000/s"
LOADS = {
    SLOW: Load(800, 300, jobs_each=20, tasks_each=1),
    FAST: Load(5_000, 180, jobs_each=1, tasks_each=250),
}
SHORT = {SLOW: Load(800, 20, jobs_each=20, tasks_each=1), FAST: Load(5_000, 10, 1, 250)}
TINY = {SLOW: Load(40, 3, jobs_each=2, tasks_each=1), FAST: Load(200, 3, 1, 20)}


def _target(name: str, quantile: str, bound: float) -> Target:
    def read(figures: Figures) -> float:
        return median(one["milliseconds"][quantile] for one in figures[name])

    return at_most(bound, f"{quantile} at {name}", read, "ms")


def _growth(name: str) -> Target:
    def read(figures: Figures) -> float:
        return 100 * median(one["backlog_growth"] for one in figures[name])

    return at_most(1, f"growth of the backlog at {name}", read, "% of the load")


def _backlogs(figures: Figures) -> Mapping[str, Points]:
    return {name: figures[name][0]["backlog"] for name in (SLOW, FAST)}


def _latencies(figures: Figures) -> Mapping[str, Points]:
    found: dict[str, Points] = {}
    for name in (SLOW, FAST):
        seconds = figures[name][0]["by_second"]
        found[f"p50 at {name}"] = [(second, p50) for second, p50, _ in seconds]
        found[f"p99 at {name}"] = [(second, p99) for second, _, p99 in seconds]
    return found


ABOUT = Description(
    id="B13",
    title="offered load",
    claim="Under a steady load tasks start at once, and the backlog is bounded.",
    workload=f"An open-loop generator submits no-op tasks over REST to {CELLS} cells at a fixed"
    " rate: 800/s for 5 minutes in requests of 20 jobs of one task, one each 25 ms; 5,000/s for 3"
    " minutes in requests of one job of 250 tasks, one each 50 ms. The short size takes 20 s and"
    " 10 s.",
    peer="Published at 800/s on PostgreSQL: awa 12 ms and 32 ms. At 5,000/s: pg-boss, pgmq and"
    " PgQue kept up in July 2026, awa reached 4,813/s.",
    method="A request is due at an instant that follows from the rate alone; 16 connections send,"
    " and refused requests are repeated. Latency is the time from that instant until the driver"
    " of the cell receives the start call, so a slow system cannot omit it. The backlog is"
    " sampled each second: tasks that are due and not yet accepted, waiting, or running. Its"
    " growth is the slope of least squares without the first tenth of the time. CPU is that of all"
    " processes until the last task has ended, divided by the tasks. The limits of one token are"
    " raised.",
    budget_seconds=85,
    targets=(
        _target(SLOW, "p50", 12),
        _target(SLOW, "p99", 32),
        _growth(SLOW),
        _target(FAST, "p50", 12),
        _target(FAST, "p99", 32),
        _growth(FAST),
    ),
    curves=(
        Curve("backlog", "seconds", "tasks", _backlogs),
        Curve("latency", "seconds", "milliseconds", _latencies),
    ),
)


def run(options: Options) -> Result:
    """Offer each load on a stand of its own."""
    result = Result(
        "B13",
        f"load at a fixed rate, {CELLS} cells",
        ("", "tasks", "p50 ms", "p99 ms", "max ms", "most backlog", "drained s", "refused"),
    )
    busy: list[float] = []
    for name, load in options.pick(tiny=TINY, short=SHORT, full=LOADS).items():
        found = []
        for _ in range(options.runs):
            with standing(Wanted(cells=CELLS, settings=SETTINGS)) as stand:
                others = Others(stand.pids)
                found.append(_one_run(stand, load))
                busy.append(others.cores())
        result.rows.append(_row(name, found))
        result.figures[name] = found
        result.notes.append(_cpu_note(name, load, found))
    result.notes.append(others_note(busy))
    result.figures["cores_used_by_others"] = busy
    return result


def _one_run(stand: Stand, load: Load) -> dict[str, Any]:
    with stand.connect() as connection:
        submit_and_wait(stand, connection, [min(WARM_UP_TASKS, load.tasks)])
        before = _cpu_seconds(stand)
        trace = OpenLoop(stand, load).run()
        used = spent(before, _cpu_seconds(stand))
        cpu_ms = {name: 1000 * seconds / load.tasks for name, seconds in used.items()}
        return measure(connection, load, trace) | {"cpu_ms": cpu_ms}


def _cpu_seconds(stand: Stand) -> dict[str, float]:
    return cpu_seconds(stand.pids) | {"the generator": time.process_time()}


def _cpu_note(name: str, load: Load, found: list[dict[str, Any]]) -> str:
    """Return what a task costs, and how many of them the machine has time for."""
    parts = {part: median(one["cpu_ms"][part] for one in found) for part in found[0]["cpu_ms"]}
    most = sorted(parts.items(), key=lambda item: -item[1])
    shares = ", ".join(f"{part} {value:.2f}" for part, value in most if value >= 0.01)
    cores, total = os.cpu_count() or 1, sum(parts.values())
    return (
        f"CPU of a task at {name}: {total:.2f} ms ({shares}). {cores} cores have time for"
        f" {1000 * cores / total:,.0f} such tasks a second, of {load.tasks_per_second:,} offered."
    )


def _row(name: str, found: list[dict[str, Any]]) -> tuple[str, ...]:
    milliseconds = {
        key: median(one["milliseconds"][key] for one in found) for key in ("p50", "p99", "max")
    }
    most = max(tasks for one in found for _, tasks in one["backlog"])
    return (
        name,
        f"{found[0]['tasks']:,}",
        *(f"{value:.1f}" for value in milliseconds.values()),
        f"{most:,}",
        f"{median(one['drain_seconds'] for one in found):.1f}",
        f"{sum(one['refused_requests'] for one in found):,}",
    )
