"""B8: tasks that are processes of one machine, submission to SUCCEEDED, against HyperQueue."""

import time
from typing import Any

import psycopg

from benchmarks import hyperqueue_true
from benchmarks.report import Result, median, others_note
from benchmarks.stand import CONTROL, FLEET, Stand, Wanted, standing
from benchmarks.throughput import noop_job, wait_for_jobs
from benchmarks.usage import Others, cpu_seconds, spent

TASKS = 10_000
WARM_UP_TASKS = 500
REST_SECONDS = 3.0
PARTS = ("cell", "spawner", "control", "postgres")
# Room for all of them at once: what is measured never waits for capacity.
CAPACITY = "cpu=128,memory=512Gi,disk=400Gi,gpu=0"


def run(runs: int) -> Result:
    """Run both, one after the other, `runs` times."""
    result = Result(
        "B8",
        f"{TASKS:,} processes `true` of 0.01 cpu on one machine",
        ("", "tasks/s", "of HyperQueue", "CPU, ms", *(f"{part}, ms" for part in PARTS)),
    )
    yardsticks: list[tuple[float, float]] = []
    found: list[dict[str, Any]] = []
    with (
        hyperqueue_true.installed() as hyperqueue_rate,
        standing(Wanted(cells=1, driver="process", capacity=CAPACITY)) as stand,
        stand.connect() as connection,
    ):
        _submit_and_wait(stand, connection, WARM_UP_TASKS)
        for _ in range(runs):
            yardsticks.append(hyperqueue_rate(TASKS))
            found.append(_one_run(stand, connection))
            time.sleep(REST_SECONDS)
    yardstick = median(rate for rate, _ in yardsticks)
    theirs = median(cpu for _, cpu in yardsticks)
    ours = median(one["rate"] for one in found)
    total = median(sum(one["cpu_ms"][name] for name in PARTS) for one in found)
    cpu = [f"{median(one['cpu_ms'][name] for one in found):.2f}" for name in PARTS]
    result.rows.append(
        ("HyperQueue", f"{yardstick:,.0f}", "1.0", f"{theirs:.2f}", *("" for _ in PARTS))
    )
    result.rows.append(("Cellrun", f"{ours:,.0f}", f"{ours / yardstick:.2f}", f"{total:.2f}", *cpu))
    result.notes.append(
        "ms: CPU time of each task; that of the spawner includes the processes themselves."
    )
    result.notes.append(others_note(one["cores_used_by_others"] for one in found))
    result.figures = {
        "hyperqueue": hyperqueue_true.VERSION,
        "hyperqueue_tasks_per_second": [rate for rate, _ in yardsticks],
        "hyperqueue_cpu_ms": [cpu for _, cpu in yardsticks],
        "runs": found,
        "ratio": ours / yardstick,
    }
    return result


def _one_run(stand: Stand, connection: psycopg.Connection[tuple[Any, ...]]) -> dict[str, Any]:
    lock = stand.plan.home.cell(FLEET) / "spawner" / "lock"
    pids = {**stand.pids, "spawner": int(lock.read_text())}
    before, others = cpu_seconds(pids), Others(pids)
    seconds = _submit_and_wait(stand, connection, TASKS)
    used = spent(before, cpu_seconds(pids))
    cpu_ms = {name: 1000 * amount / TASKS for name, amount in used.items()}
    cpu_ms["cell"] = cpu_ms[FLEET]
    cpu_ms["control"] = sum(cpu_ms[name] for name in CONTROL)
    return {
        "tasks": TASKS,
        "seconds": seconds,
        "rate": TASKS / seconds,
        "cpu_ms": cpu_ms,
        "cores_used_by_others": others.cores(),
    }


def _submit_and_wait(
    stand: Stand, connection: psycopg.Connection[tuple[Any, ...]], tasks: int
) -> float:
    began = time.perf_counter()
    job = {
        **noop_job(tasks),
        "name": "true",
        "command": ["true"],
        "result_file": None,
        # As much as a job gets that names none, halved: HyperQueue's tasks have no limit at all.
        "resources": {"cpu": 0.01, "memory": "64Mi"},
    }
    wait_for_jobs(stand, connection, [stand.post("/api/v1/jobs", job)["id"]])
    return time.perf_counter() - began
