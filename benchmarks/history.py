"""B9: lists, pages and placement with a million ended tasks in the tables."""

import json
import time
from collections.abc import Callable
from typing import Any

from benchmarks.copies import BASE, make_old_jobs
from benchmarks.description import Description, Figures, Options, Target, at_most
from benchmarks.pages import Browser
from benchmarks.report import Result, median, others_note, quantile
from benchmarks.stand import Stand, Wanted, standing
from benchmarks.usage import Others

CELLS = 100
SIZES = ((200, 4_000), (200_000, 1))
WAITING = 1_000
REQUESTS = 50
PASSES = 20

READS = (
    ("list of jobs", "/api/v1/jobs"),
    ("list of tasks by state", "/api/v1/tasks?state=succeeded"),
    ("a large job", f"/api/v1/jobs/{BASE}"),
    ("its tasks", f"/api/v1/tasks?job={BASE}"),
)
ADMIN = ("list of tasks in the admin", "/admin/controlplane/task/")
NAMES = (*(name for name, _ in READS), ADMIN[0])


def _p95(name: str) -> Target:
    def read(figures: Figures) -> float:
        return float(figures["reads"][name]["p95"])

    return at_most(50, f"p95, {name}", read, "ms")


ABOUT = Description(
    id="B9",
    title="a million finished tasks",
    claim="Finished work slows neither reads nor placement.",
    workload="A million ended tasks (200 jobs of 4,000 and 200,000 of one, copies of one real"
    f" job; the short size has a tenth of them) and {WAITING:,} tasks that wait for larger cells.",
    peer="None.",
    method=f"{REQUESTS} requests each, one after the other, over a new connection each: two lists"
    " of the API, a job with 4,000 tasks, its tasks, and a list of the admin with 25 rows. Median"
    f" duration of {PASSES} full passes of placement before the tasks are made and afterwards."
    " Always one run.",
    budget_seconds=80,
    targets=(
        *map(_p95, NAMES),
        at_most(
            1.1,
            "pass of placement, after / before",
            lambda it: median(it["after_ms"]) / median(it["before_ms"]),
        ),
    ),
)


def run(options: Options) -> Result:
    """Time passes, make the tasks, time passes and reads."""
    tiny = ((2, 100), (200, 1))
    short = tuple((count // 10, size) for count, size in SIZES)
    sizes = options.pick(tiny=tiny, short=short, full=SIZES)
    passes = options.pick(tiny=2, short=PASSES, full=PASSES)
    requests = options.pick(tiny=3, short=REQUESTS, full=REQUESTS)
    tasks = sum(count * size for count, size in sizes)
    result = Result("B9", f"{tasks:,} ended tasks", ("", "median ms", "p95 ms"))
    with standing(Wanted(cells=CELLS)) as stand, stand.connect() as connection:
        others = Others(stand.pids)
        stand.post("/api/v1/jobs", _waiting())
        before = _time_passes(stand, passes)
        make_old_jobs(stand, connection, sizes)
        after = _time_passes(stand, passes)
        browser = Browser(stand)
        browser.log_in()
        reads: dict[str, Callable[[], object]] = {
            name: lambda path=path: stand.get(path)  # type: ignore[misc]
            for name, path in READS
        }
        reads[ADMIN[0]] = lambda: browser.get(ADMIN[1])
        found = {name: _time_requests(read, requests) for name, read in reads.items()}
        busy = others.cores()
    for name, values in found.items():
        result.rows.append((name, f"{values['median']:.1f}", f"{values['p95']:.1f}"))
    for name, of_pass in (("pass before", before), ("pass afterwards", after)):
        ordered = sorted(of_pass)
        row = (f"{median(ordered):.1f}", f"{quantile(ordered, 0.95):.1f}")
        result.rows.append((name, *row))
    result.notes.append(others_note([busy]))
    result.figures = {
        "tasks": tasks,
        "reads": found,
        "before_ms": before,
        "after_ms": after,
        "cores_used_by_others": busy,
    }
    return result


def _waiting() -> dict[str, Any]:
    return {
        "name": "waits",
        "replicas": WAITING,
        "task_type": "process",
        "command": ["noop"],
        "resources": {"cpu": 100, "memory": "16Mi", "disk": "1Mi"},
        "allow_unsatisfiable": True,
    }


def _time_passes(stand: Stand, passes: int) -> list[float]:
    """Time full passes, without the first, in milliseconds; the process that places is stopped."""
    stand.stop("placement")
    timed = json.loads(stand.run_module("benchmarks.passes", str(1 + passes)))
    stand.start_again("placement")
    return [1000 * one["seconds"] for one in timed[1:]]


def _time_requests(read: Callable[[], object], requests: int) -> dict[str, float]:
    read()
    values = []
    for _ in range(requests):
        began = time.perf_counter()
        read()
        values.append(1000 * (time.perf_counter() - began))
    values.sort()
    return {"median": median(values), "p95": quantile(values, 0.95)}
