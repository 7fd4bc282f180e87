"""CANCEL: 10,000 running tasks are cancelled; when all are KILLED, and every stop is confirmed.

Read from the rows. A stop is confirmed when the cell has reported that the container is gone,
and the attempt holds no capacity any more.
"""

import time
from typing import Any

import psycopg

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

KILLED = f"all {TASKS:,} tasks are KILLED"
CONFIRMED = "every stop is confirmed"
STAGES = (
    ("answered", "the request is answered", "1"),
    ("killed", KILLED, "3"),
    ("confirmed", CONFIRMED, ""),
)
"""What is timed: how the table calls it, and how many seconds it may take."""

_OF_TASKS = "SELECT state, count(*) FROM controlplane_task WHERE job_id = %s GROUP BY state"
_OF_ATTEMPTS = """
SELECT release_kind, count(*) FROM controlplane_attempt WHERE job_id = %s GROUP BY release_kind
"""

Connection = psycopg.Connection[tuple[Any, ...]]


def run(runs: int) -> Result:
    """One job after the other: submitted, all of it running, cancelled, all of it gone."""
    result = Result(
        "CANCEL",
        f"cancel a job of {TASKS:,} running tasks, {CELLS} cells",
        ("seconds until", "median", "worst", "at most"),
    )
    with standing(Wanted(cells=CELLS)) as stand, stand.connect() as connection:
        found = [_one_run(stand, connection) for _ in range(runs)]
    for stage, text, limit in STAGES:
        seconds = [one[stage] for one in found]
        result.rows.append((text, f"{median(seconds):.2f}", f"{max(seconds):.2f}", limit))
    result.notes.append(f"Seconds of CPU, median of {runs} runs: {_cpu_note(found)}.")
    result.notes.append(others_note(one["cores_used_by_others"] for one in found))
    result.figures = {"runs": found}
    return result


def _one_run(stand: Stand, connection: Connection) -> dict[str, Any]:
    job_id = stand.post("/api/v1/jobs", _sleepers())["id"]
    stand.wait_until(
        lambda: _counts(connection, _OF_TASKS, job_id) == {TaskState.RUNNING: TASKS},
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
    _check(job_id, _counts(connection, _OF_TASKS, job_id), {TaskState.KILLED: TASKS})
    _check(job_id, _counts(connection, _OF_ATTEMPTS, job_id), {"confirmed": TASKS})
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


def _sleepers() -> dict[str, Any]:
    return {
        "name": "sleepers",
        "replicas": TASKS,
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
