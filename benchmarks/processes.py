"""B8: tasks that are processes of one machine, against HyperQueue."""

import os
import shutil
import time
from typing import Any

import psycopg

from benchmarks import hyperqueue_true
from benchmarks.description import Description, Figures, Options, at_least
from benchmarks.report import Result, median, others_note
from benchmarks.stand import CONTROL, FLEET, Stand, Wanted, standing
from benchmarks.throughput import noop_job, wait_for_jobs
from benchmarks.usage import Others, cpu_seconds, machine_busy_seconds, spent

TASKS = 10_000
WARM_UP_TASKS = 500
BARE_STARTS = 1_000
REST_SECONDS = 3.0
PARTS = ("cell", "spawner", "control", "postgres")
# Room for all of them at once: what is measured never waits for capacity.
CAPACITY = "cpu=128,memory=512Gi,disk=400Gi,gpu=0"


CELLS_WITH_OUTPUT = 4


def _rate_with_output(figures: Figures) -> float:
    return median(one["rate"] for one in figures["with_output"])


ABOUT = Description(
    id="B8",
    title="processes on one machine",
    claim="Recorded processes are twice as fast as those of a launcher that records nothing.",
    workload=f"A job of {TASKS:,} processes `true`, 0.01 cpu and 64 MiB each, no result file, on"
    " one cell with capacity for all; fsync, events and history as in B1. Then a job of as many"
    f" processes that print a line, on {CELLS_WITH_OUTPUT} cells, which keep the output. The"
    " short size has half the processes, and 2,000 with output.",
    peer="HyperQueue 0.27.0, server and worker as its Python package starts them, output not"
    " stored (which is faster). It writes nothing to disk. Its client runs in a process of its"
    " own. The benchmark installs it in `.tools`. In results before 2026-11-25 the client is in"
    " the process of the cluster, in which HyperQueue is slower. Published for launchers on"
    " Frontier: 1,500/s (RADICAL-Pilot with Flux and Dragon).",
    method="Time over REST until the job is SUCCEEDED; HyperQueue's until its client has seen the"
    " last end. Both in turns. CPU is that of all processes for one task. Before them, this"
    " process starts `true` itself, which no launcher does for less.",
    budget_seconds=80,
    targets=(
        at_least(2, "rate / rate of HyperQueue", lambda it: it["ratio"]),
        at_least(
            1500, f"rate on {CELLS_WITH_OUTPUT} cells with output", _rate_with_output, "tasks/s"
        ),
    ),
)


def run(options: Options) -> Result:
    """Run both in turns, then cells that keep the output."""
    tasks = options.pick(tiny=200, short=TASKS // 2, full=TASKS)
    tasks_with_output = options.pick(tiny=200, short=TASKS // 5, full=TASKS)
    result = Result(
        "B8",
        f"{tasks:,} processes of 0.01 cpu on one machine, {tasks_with_output:,} with output",
        ("", "tasks/s", "of HyperQueue", "CPU, ms", *(f"{part}, ms" for part in PARTS)),
    )
    bare = [_bare_start_ms(min(BARE_STARTS, tasks)) for _ in range(options.runs)]
    yardsticks: list[tuple[float, float]] = []
    found: list[dict[str, Any]] = []
    with (
        hyperqueue_true.installed() as hyperqueue_rate,
        standing(Wanted(cells=1, driver="process", capacity=CAPACITY)) as stand,
        stand.connect() as connection,
    ):
        _submit_and_wait(stand, connection, min(WARM_UP_TASKS, tasks), ["true"])
        for _ in range(options.runs):
            yardsticks.append(hyperqueue_rate(tasks))
            found.append(_one_run(stand, connection, tasks))
            time.sleep(REST_SECONDS)
    with_output = _with_output(options.runs, tasks_with_output)
    yardstick = median(rate for rate, _ in yardsticks)
    theirs = median(cpu for _, cpu in yardsticks)
    ours = median(one["rate"] for one in found)
    total = median(sum(one["cpu_ms"][name] for name in PARTS) for one in found)
    cpu = [f"{median(one['cpu_ms'][name] for one in found):.2f}" for name in PARTS]
    result.rows.append(
        ("HyperQueue", f"{yardstick:,.0f}", "1.0", f"{theirs:.2f}", *("" for _ in PARTS))
    )
    result.rows.append(("Cellrun", f"{ours:,.0f}", f"{ours / yardstick:.2f}", f"{total:.2f}", *cpu))
    rate = f"{median(one['rate'] for one in with_output):,.0f}"
    title = f"Cellrun, {CELLS_WITH_OUTPUT} cells with output"
    of_machine = median(one["cpu_ms"] for one in with_output)
    result.rows.append((title, rate, "", f"{of_machine:.2f}", *("" for _ in PARTS)))
    result.notes.append(
        "ms: CPU time of each task; that of the spawner includes the processes themselves, that"
        " with output is all that the machine used."
    )
    floor = median(bare)
    result.notes.append(
        f"Starting `true` with two pipes by `posix_spawn` and waiting for its end, without any"
        f" launcher, takes {floor:.2f} ms: {100 * floor / total:.0f} % of Cellrun's time for it."
    )
    cores = os.cpu_count() or 1
    result.notes.append(
        f"{cores} cores have time for {1000 * cores / total:,.0f} such processes a second, and for"
        f" {1000 * cores / of_machine:,.0f} with output."
    )
    result.notes.append(others_note(one["cores_used_by_others"] for one in found))
    result.figures = {
        "hyperqueue": hyperqueue_true.VERSION,
        "hyperqueue_tasks_per_second": [rate for rate, _ in yardsticks],
        "hyperqueue_cpu_ms": [cpu for _, cpu in yardsticks],
        "runs": found,
        "with_output": with_output,
        "bare_start_cpu_ms": bare,
        "ratio": ours / yardstick,
    }
    return result


def _bare_start_ms(starts: int) -> float:
    """Return the CPU time of a start of `true` and its end, in ms; no launcher takes less."""
    path = shutil.which("true")
    assert path is not None
    before = sum(os.times()[:4])
    for _ in range(starts):
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        streams = [(os.POSIX_SPAWN_DUP2, out_end, 1), (os.POSIX_SPAWN_DUP2, err_end, 2)]
        pid = os.posix_spawn(path, ["true"], os.environ, file_actions=streams, setsid=True)
        os.waitpid(pid, 0)
        for descriptor in (out, out_end, err, err_end):
            os.close(descriptor)
    return 1000 * (sum(os.times()[:4]) - before) / starts


def _with_output(runs: int, tasks: int) -> list[dict[str, float]]:
    """Run processes that print a line on cells that keep it."""
    cells = CELLS_WITH_OUTPUT
    wanted = Wanted(cells=cells, fleets=cells, driver="process", capacity=CAPACITY)
    found = []
    with standing(wanted) as stand, stand.connect() as connection:
        _submit_and_wait(stand, connection, min(WARM_UP_TASKS, tasks), ["echo", "warm"])
        for _ in range(runs):
            busy = machine_busy_seconds()
            seconds = _submit_and_wait(stand, connection, tasks, ["echo", "done"])
            cpu_ms = 1000 * (machine_busy_seconds() - busy) / tasks
            found.append({"seconds": seconds, "rate": tasks / seconds, "cpu_ms": cpu_ms})
            time.sleep(REST_SECONDS)
    return found


def _one_run(
    stand: Stand, connection: psycopg.Connection[tuple[Any, ...]], tasks: int
) -> dict[str, Any]:
    lock = stand.plan.home.cell(FLEET) / "spawner" / "lock"
    pids = {**stand.pids, "spawner": int(lock.read_text())}
    before, others = cpu_seconds(pids), Others(pids)
    seconds = _submit_and_wait(stand, connection, tasks, ["true"])
    used = spent(before, cpu_seconds(pids))
    cpu_ms = {name: 1000 * amount / tasks for name, amount in used.items()}
    cpu_ms["cell"] = cpu_ms[FLEET]
    cpu_ms["control"] = sum(cpu_ms[name] for name in CONTROL)
    return {
        "tasks": tasks,
        "seconds": seconds,
        "rate": tasks / seconds,
        "cpu_ms": cpu_ms,
        "cores_used_by_others": others.cores(),
    }


def _submit_and_wait(
    stand: Stand, connection: psycopg.Connection[tuple[Any, ...]], tasks: int, command: list[str]
) -> float:
    began = time.perf_counter()
    job = {
        **noop_job(tasks),
        "name": command[0],
        "command": command,
        "result_file": None,
        # As much as a job gets that names none, halved: HyperQueue's tasks have no limit at all.
        "resources": {"cpu": 0.01, "memory": "64Mi"},
    }
    wait_for_jobs(stand, connection, [stand.post("/api/v1/jobs", job)["id"]])
    return time.perf_counter() - began
