"""B1: the whole life of no-op tasks, against bare Celery."""

import time
from typing import Any

import psycopg

from benchmarks import celery_noop
from benchmarks.bare_rows import measure_rows
from benchmarks.description import Description, Figures, Options, at_least, at_most
from benchmarks.report import Result, median, others_note
from benchmarks.stand import CONTROL, FLEET, Stand, Wanted, standing
from benchmarks.usage import Others, cpu_seconds, spent

CELLS = 100
# The most that one job may have; two users, since one may not have 20,000 unfinished tasks.
TASKS_PER_JOB = 10_000
CELERY_TASKS = 5_000
WARM_UP_TASKS = 2_000
WAIT_SECONDS = 300.0
# Messages of bare Celery per second on the machine that the targets for CPU time were set on.
REFERENCE_RATE = 1_500
_SCALED = f", scaled to a machine where bare Celery does {REFERENCE_RATE:,} messages/s"
OURS = (*CONTROL, FLEET)
SERVICES = ("postgres", "redis")


def _scale(figures: Figures, cpu_ms: float) -> float:
    """Return CPU time as it would be on the machine that the targets were set on.

    Other load lowers the rates of Celery, never raises them: the highest shows the machine best.
    """
    return cpu_ms * max(one["rate"] for one in figures["celery"]) / REFERENCE_RATE


def _control_ms(figures: Figures) -> float:
    """Return the scaled CPU of the control plane for one task; the processes of a result vary."""
    return _scale(
        figures,
        median(sum(one["cpu_ms"].get(name, 0.0) for name in CONTROL) for one in figures["plain"]),
    )


def _postgres_ms(figures: Figures) -> float:
    """Return the scaled CPU of PostgreSQL for one task."""
    return _scale(figures, median(one["cpu_ms"]["postgres"] for one in figures["plain"]))


ABOUT = Description(
    id="B1",
    title="the whole life of no-op tasks",
    claim="A task with its whole recorded life costs a fifth of the CPU of a bare Celery message.",
    workload=f"Two users submit a job of {TASKS_PER_JOB:,} tasks each over REST at the same time;"
    f" {CELLS} cells have capacity for all tasks. Each task has its rows, its order through"
    " Celery, two fsyncs of the journal of its cell, its history, and with Flower its event. Once"
    " without Flower, once with it.",
    peer="A no-op task of bare Celery without events, results or persistence, published by one"
    " producer in a loop and run by one worker with two threads (the fastest of its pools here).",
    method="Time from the first request until both jobs are SUCCEEDED in the database. CPU is"
    " user and system time from `/proc` of all processes: of Cellrun web, ticks, inbox, beat,"
    " fleet, PostgreSQL and Redis, until 1.5 s after the end; of Celery producer, worker and"
    " Redis. Both run in turns. Cellrun uses all cores, bare Celery one process, so the ratio of"
    " rates depends on other load more than that of costs. The targets for CPU time are for a"
    f" machine where bare Celery does {REFERENCE_RATE:,} messages/s: the figures of another machine"
    " are multiplied by its highest rate of bare Celery and divided by that. The last row is what"
    " PostgreSQL takes at least: the same rows of tasks, attempts and history, written by three"
    " statements in one transaction, without a control plane.",
    budget_seconds=85,
    targets=(
        at_least(5, "CPU of a bare message / of a recorded life", lambda it: it["cost_ratio"]),
        at_most(0.10, f"CPU of the control plane without the fleet{_SCALED}", _control_ms, "ms"),
        at_most(0.06, f"CPU of PostgreSQL{_SCALED}", _postgres_ms, "ms"),
        at_least(6, "rate / rate of bare Celery", lambda it: it["ratio_plain"]),
        at_least(4.5, "the same with Flower", lambda it: it["ratio_with_flower"]),
    ),
)


def run(options: Options) -> Result:
    """Measure without Flower and with it."""
    per_job = options.pick(tiny=100, short=TASKS_PER_JOB, full=TASKS_PER_JOB)
    messages = options.pick(tiny=100, short=CELERY_TASKS, full=CELERY_TASKS)
    result = Result(
        "B1",
        f"whole life of no-op tasks, {2 * per_job:,} in 2 jobs on {CELLS} cells",
        ("", "tasks/s", "of bare", "CPU ms", "bare / it", "without cells", "PostgreSQL", "Flower"),
    )
    bare, plain, alone = _measure(options.runs, per_job, messages, flower=False)
    _, watched, _ = _measure(options.runs, per_job, messages, flower=True)
    rate = median(one["rate"] for one in bare)
    cost = median(one["cpu_ms"] for one in bare)
    result.rows.append(("bare Celery no-op", f"{rate:,.0f}", "1.0", f"{cost:.3f}", *[""] * 4))
    for name, found in (("Flower not running", plain), ("Flower running", watched)):
        result.rows.append(_row(name, found, rate, cost))
    result.rows.append(("their rows alone", *[""] * 5, f"{median(alone):.3f}", ""))
    result.notes += [
        "CPU ms of one task: user and system time of all processes. Bare Celery: producer, worker,"
        " Redis. Cellrun: control plane, cells, PostgreSQL, Redis, without Flower.",
        others_note(one["cores_used_by_others"] for one in (*plain, *watched)),
    ]
    result.figures = {
        "celery": bare,
        "plain": plain,
        "with_flower": watched,
        "rows_alone_ms": alone,
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


def _measure(
    runs: int, per_job: int, messages: int, *, flower: bool
) -> tuple[list[dict[str, float]], list[dict[str, Any]], list[float]]:
    """Run bare Celery and ours in turns, at last the rows alone; with Flower only ours."""
    bare: list[dict[str, float]] = []
    found: list[dict[str, Any]] = []
    alone: list[float] = []
    with standing(Wanted(cells=CELLS, flower=flower)) as stand, stand.connect() as connection:
        submit_and_wait(stand, connection, [WARM_UP_TASKS])
        for _ in range(runs):
            if not flower:
                bare.append(_one_bare_run(stand, messages))
            found.append(_one_run(stand, connection, per_job))
            time.sleep(2.0)  # what is left over, acknowledgements and Flower's work, passes
        for number in range(0 if flower else runs):
            alone.append(measure_rows(stand, connection, 2 * per_job, before=2 * per_job * number))
    return bare, found, alone


def _one_bare_run(stand: Stand, messages: int) -> dict[str, float]:
    """Return rate and CPU of bare Celery. Its producer is this process."""
    broker_url = stand.plan.broker_url.removesuffix("/0") + "/1"
    with celery_noop.worker(broker_url) as worker:
        pids = {"worker": worker, "redis": stand.pids["redis"]}
        before, producer = cpu_seconds(pids), time.process_time()
        seconds = celery_noop.run(messages, broker_url)
        used = time.process_time() - producer + sum(spent(before, cpu_seconds(pids)).values())
    return {"rate": messages / seconds, "cpu_ms": 1000 * used / messages}


def _one_run(
    stand: Stand, connection: psycopg.Connection[tuple[Any, ...]], per_job: int
) -> dict[str, Any]:
    tasks = 2 * per_job
    before, others = cpu_seconds(stand.pids), Others(stand.pids)
    seconds = submit_and_wait(stand, connection, [per_job, per_job])
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
