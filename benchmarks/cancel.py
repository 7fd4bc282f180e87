"""CANCEL: 10,000 running tasks are cancelled."""

import time
from typing import Any

import psycopg

from benchmarks.description import Description, Options, Target, at_most
from benchmarks.report import Result, median, others_note
from benchmarks.stand import CONTROL, FLEET, Stand, Wanted, standing
from benchmarks.usage import Others, cpu_seconds, spent
from controlplane.contract.states import TaskState

CELLS = 100
# The most that one job may have.
TASKS = 10_000
WAIT_SECONDS = 120.0
# Acknowledgements, heartbeats and what the system still writes of the start pass by.
REST_SECONDS = 6.0

KILLED = "all tasks are KILLED"
CONFIRMED = "every stop is confirmed"
STAGES = (
    ("answered", "the request is answered"),
    ("killed", KILLED),
    ("confirmed", CONFIRMED),
)
"""The figures and their names in the table."""

_OF_TASKS = "SELECT state, count(*) FROM controlplane_task WHERE job_id = %s GROUP BY state"
_OF_ATTEMPTS = """
SELECT release_kind, count(*) FROM controlplane_attempt WHERE job_id = %s GROUP BY release_kind
"""

Connection = psycopg.Connection[tuple[Any, ...]]


def _target(bound: float, stage: str, text: str) -> Target:
    return at_most(
        bound, f"seconds until {text}", lambda it: median(one[stage] for one in it["runs"]), "s"
    )


ABOUT = Description(
    id="CANCEL",
    title="the end of a job of 10,000 running tasks",
    claim="The cancellation of a large job takes seconds and blocks no request.",
    workload=f"{CELLS} cells run a job of {TASKS:,} sleeping tasks; it is cancelled over REST.",
    peer="None.",
    method="Read from the rows. The request is answered when the first page of 1,000 tasks is"
    " ended; convergence ends the others page by page. A stop is confirmed when the cell has"
    " reported that the container is gone and the attempt holds no capacity. Simulated containers"
    " stop at once, so confirmations compete with the cascade for the lock of the job; real ones"
    " have a grace period of 10 s.",
    budget_seconds=40,
    targets=(_target(1, *STAGES[0]), _target(3, *STAGES[1])),
)


def run(options: Options) -> Result:
    """Submit a job, wait until all of it runs, and cancel it, once for each run."""
    runs, tasks = options.runs, options.pick(tiny=200, short=TASKS, full=TASKS)
    result = Result(
        "CANCEL",
        f"cancel a job of {tasks:,} running tasks, {CELLS} cells",
        ("seconds until", "median", "worst"),
    )
    with standing(Wanted(cells=CELLS)) as stand, stand.connect() as connection:
        found = [_one_run(stand, connection, tasks) for _ in range(runs)]
    for stage, text in STAGES:
        seconds = [one[stage] for one in found]
        result.rows.append((text, f"{median(seconds):.2f}", f"{max(seconds):.2f}"))
    result.notes.append(f"Seconds of CPU, median of {runs} runs: {_cpu_note(found)}.")
    result.notes.append(others_note(one["cores_used_by_others"] for one in found))
    result.figures = {"runs": found}
    return result


def _one_run(stand: Stand, connection: Connection, tasks: int) -> dict[str, Any]:
    job_id = stand.post("/api/v1/jobs", _sleepers(tasks))["id"]
    stand.wait_until(
        lambda: _counts(connection, _OF_TASKS, job_id) == {TaskState.RUNNING: tasks},
        "all tasks run",
        seconds=WAIT_SECONDS,
    )
    time.sleep(REST_SECONDS)
    before, others = cpu_seconds(stand.pids), Others(stand.pids)
    began = time.perf_counter()
    stand.post(f"/api/v1/jobs/{job_id}/cancel", {"reason": "a benchmark"})
    answered = time.perf_counter() - began
    # A job has finished when its last task has, and is settled when its last attempt is released.
    stand.wait_until(lambda: _has(connection, "finished_at", job_id), KILLED, seconds=WAIT_SECONDS)
    killed = time.perf_counter() - began
    stand.wait_until(
        lambda: _has(connection, "settled_at", job_id), CONFIRMED, seconds=WAIT_SECONDS
    )
    confirmed = time.perf_counter() - began
    used = spent(before, cpu_seconds(stand.pids))
    _check(job_id, _counts(connection, _OF_TASKS, job_id), {TaskState.KILLED: tasks})
    _check(job_id, _counts(connection, _OF_ATTEMPTS, job_id), {"confirmed": tasks})
    return {
        "answered": answered,
        "killed": killed,
        "confirmed": confirmed,
        "cpu_seconds": used,
        "cores_used_by_others": others.cores(),
    }


def _check(job_id: int, found: dict[Any, int], wanted: dict[Any, int]) -> None:
    if found != wanted:
        raise RuntimeError(f"job {job_id}: {wanted} was expected, it is {found}")


def _sleepers(tasks: int) -> dict[str, Any]:
    return {
        "name": "sleepers",
        "replicas": tasks,
        "task_type": "process",
        "command": ["sleep", "100000"],
        "resources": {"cpu": 0.01, "memory": "16Mi", "disk": "1Mi"},
    }


def _counts(connection: Connection, statement: str, job_id: int) -> dict[Any, int]:
    return dict(connection.execute(statement, [job_id]).fetchall())


def _has(connection: Connection, column: str, job_id: int) -> bool:
    statement = f"SELECT {column} IS NOT NULL FROM controlplane_job WHERE id = %s"
    return connection.execute(statement, [job_id]).fetchone() == (True,)


def _cpu_note(found: list[dict[str, Any]]) -> str:
    names = ("postgres", *CONTROL, FLEET)
    spent_by = {name: median(one["cpu_seconds"][name] for one in found) for name in names}
    return ", ".join(f"{name} {seconds:.2f}" for name, seconds in spent_by.items())
