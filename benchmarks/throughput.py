"""B1: the whole life of no-op tasks, from submission to SUCCEEDED, against bare Celery's no-op."""

import time
from typing import Any

import psycopg

from benchmarks import celery_noop
from benchmarks.report import Result, median, others_note
from benchmarks.stand import CONTROL, FLEET, Stand, Wanted, standing
from benchmarks.usage import Others, cpu_seconds, spent

CELLS = 100
# The most that one job may have; two users, since one may not have 20,000 unfinished tasks.
TASKS_PER_JOB = 10_000
CELERY_TASKS = 5_000
WARM_UP_TASKS = 2_000
WAIT_SECONDS = 300.0
OURS = (*CONTROL, FLEET)
SERVICES = ("postgres", "redis")


def run(runs: int) -> Result:
    """Both rows: Flower not running, and running."""
    result = Result(
        "B1",
        f"whole life of no-op tasks, {2 * TASKS_PER_JOB:,} in 2 jobs on {CELLS} cells",
        ("", "tasks/s", "of bare", "CPU ms", "bare / it", "without cells", "PostgreSQL", "Flower"),
    )
    bare, plain = _measure(runs, flower=False)
    _, watched = _measure(runs, flower=True)
    rate = median(one["rate"] for one in bare)
    cost = median(one["cpu_ms"] for one in bare)
    result.rows.append(("bare Celery no-op", f"{rate:,.0f}", "1.0", f"{cost:.3f}", *[""] * 4))
    for name, found in (("Flower not running", plain), ("Flower running", watched)):
        result.rows.append(_row(name, found, rate, cost))
    result.notes += [
        "CPU ms of one task: user and system time of all processes. Bare Celery: producer, worker,"
        " Redis. Cellrun: control plane, cells, PostgreSQL, Redis, without Flower.",
        others_note(one["cores_used_by_others"] for one in (*plain, *watched)),
    ]
    result.figures = {
        "celery": bare,
        "plain": plain,
        "with_flower": watched,
        "ratio_plain": median(one["rate"] for one in plain) / rate,
        "ratio_with_flower": median(one["rate"] for one in watched) / rate,
        "cost_ratio": cost / median(one["cpu_ms"]["all"] for one in plain),
    }
    return result


def _row(
    name: str, found: list[dict[str, Any]], bare_rate: float, bare_cpu_ms: float
) -> tuple[str, ...]:
    rate = median(one["rate"] for one in found)
    cpu = {
        part: median(one["cpu_ms"].get(part, 0.0) for one in found)
        for part in ("all", "control", "postgres", "flower")
    }
    return (
        name,
        f"{rate:,.0f}",
        f"{rate / bare_rate:.2f}",
        f"{cpu['all']:.3f}",
        f"{bare_cpu_ms / cpu['all']:.2f}",
        f"{cpu['control']:.3f}",
        f"{cpu['postgres']:.3f}",
        f"{cpu['flower']:.3f}" if cpu["flower"] else "",
    )


def _measure(runs: int, *, flower: bool) -> tuple[list[dict[str, float]], list[dict[str, Any]]]:
    """Run bare Celery and ours in turns; with Flower only ours."""
    bare: list[dict[str, float]] = []
    found: list[dict[str, Any]] = []
    with standing(Wanted(cells=CELLS, flower=flower)) as stand, stand.connect() as connection:
        submit_and_wait(stand, connection, [WARM_UP_TASKS])
        for _ in range(runs):
            if not flower:
                bare.append(_one_bare_run(stand))
            found.append(_one_run(stand, connection))
            time.sleep(2.0)  # what is left over, acknowledgements and Flower's work, passes
    return bare, found


def _one_bare_run(stand: Stand) -> dict[str, float]:
    """Return rate and CPU of bare Celery. Its producer is this process."""
    broker_url = stand.plan.broker_url.removesuffix("/0") + "/1"
    with celery_noop.worker(broker_url) as worker:
        pids = {"worker": worker, "redis": stand.pids["redis"]}
        before, producer = cpu_seconds(pids), time.process_time()
        seconds = celery_noop.run(CELERY_TASKS, broker_url)
        used = time.process_time() - producer + sum(spent(before, cpu_seconds(pids)).values())
    return {"rate": CELERY_TASKS / seconds, "cpu_ms": 1000 * used / CELERY_TASKS}


def _one_run(stand: Stand, connection: psycopg.Connection[tuple[Any, ...]]) -> dict[str, Any]:
    tasks = 2 * TASKS_PER_JOB
    before, others = cpu_seconds(stand.pids), Others(stand.pids)
    seconds = submit_and_wait(stand, connection, [TASKS_PER_JOB, TASKS_PER_JOB])
    time.sleep(1.5)  # the price includes what follows: acknowledgements, events
    used = spent(before, cpu_seconds(stand.pids))
    cpu_ms = {name: 1000 * amount / tasks for name, amount in used.items()}
    cpu_ms["ours"] = sum(cpu_ms[name] for name in OURS)
    cpu_ms["control"] = sum(cpu_ms[name] for name in CONTROL)
    cpu_ms["all"] = cpu_ms["ours"] + sum(cpu_ms[name] for name in SERVICES)
    return {
        "tasks": tasks,
        "seconds": seconds,
        "rate": tasks / seconds,
        "cpu_ms": cpu_ms,
        "cores_used_by_others": others.cores(),
    }


def submit_and_wait(
    stand: Stand, connection: psycopg.Connection[tuple[Any, ...]], sizes: list[int]
) -> float:
    """Seconds from the first request until every task SUCCEEDED."""
    began = time.perf_counter()
    jobs = [
        stand.post("/api/v1/jobs", noop_job(size), operator=bool(number % 2))["id"]
        for number, size in enumerate(sizes)
    ]
    wait_for_jobs(stand, connection, jobs)
    return time.perf_counter() - began


def wait_for_jobs(
    stand: Stand, connection: psycopg.Connection[tuple[Any, ...]], jobs: list[str]
) -> None:
    """Return when every task SUCCEEDED. Raises RuntimeError if that can no longer be."""
    statement = (
        "SELECT count(*) FILTER (WHERE finished_at IS NULL), count(*) FILTER (WHERE state = 4)"
        " FROM controlplane_job WHERE id = ANY(%s)"
    )
    open_jobs, succeeded = len(jobs), 0

    def is_over() -> bool:
        nonlocal open_jobs, succeeded
        open_jobs, succeeded = connection.execute(statement, [jobs]).fetchone() or (0, 0)
        return open_jobs == 0

    stand.wait_until(is_over, "all jobs are finished", seconds=WAIT_SECONDS)
    if succeeded != len(jobs):
        raise RuntimeError(f"only {succeeded} of {len(jobs)} jobs succeeded")


def noop_job(replicas: int) -> dict[str, Any]:
    """A job of tasks that do nothing."""
    return {
        "name": "noop",
        "replicas": replicas,
        "task_type": "process",
        "command": ["noop"],
        "resources": {"cpu": 0.01, "memory": "16Mi", "disk": "1Mi"},
    }
