"""B12: a tenth of the cells is killed while tasks run."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import psycopg

from benchmarks.description import Description, Options, at_most
from benchmarks.report import Result, median, others_note
from benchmarks.stand import FLEET, Stand, Wanted, standing
from benchmarks.usage import Others
from controlplane.contract.states import TaskState
from controlplane.domain.convergence.policy import Policy

CELLS, FLEETS = 100, 10
TASKS = 2_000
# Longer than it takes to see that a cell is gone: all others still run then.
TASK_SECONDS = 60.0
WAIT_SECONDS = 300.0
# So much later than a lease is over, as we count it, is a cell declared LOST at the latest.
MARGIN_SECONDS = 10.0
SHORT_SETTINGS = {
    "CELLRUN_HEARTBEAT_SECONDS": "2",
    "CELLRUN_LEASE_SECONDS": "10",
    "CELLRUN_CONVERGENCE_INTERVAL_SECONDS": "2",
}
TINY_SETTINGS = {
    "CELLRUN_HEARTBEAT_SECONDS": "1",
    "CELLRUN_LEASE_SECONDS": "3",
    "CELLRUN_CONVERGENCE_INTERVAL_SECONDS": "1",
}
DATABASE_OPTIONS = ("track_commit_timestamp=on",)

LOST = "a killed cell is LOST"
RERUN = "a task of it runs elsewhere"

Connection = psycopg.Connection[tuple[Any, ...]]

_IS_JUDGING = """
SELECT count(*) FROM controlplane_tickstate
WHERE name = 'convergence' AND finished_at IS NOT NULL
  AND coalesce(hold_until, '-infinity') <= clock_timestamp()
"""
_OF_TASKS = "SELECT state, count(*) FROM controlplane_task WHERE job_id = %s GROUP BY state"
_LOST = """
SELECT subject, extract(epoch FROM pg_xact_commit_timestamp(xmin) - %(killed_at)s)::float
FROM controlplane_alert WHERE kind = 'cell_lost' AND raised_at >= %(killed_at)s ORDER BY 2
"""
# Of each task once: the first one to take it up may be dead, too, and not have been missed yet.
_RERUN = """
SELECT extract(epoch FROM min(b.started_at) - %s)::float
FROM controlplane_attempt a JOIN controlplane_attempt b
  ON b.task_id = a.task_id AND b.number > a.number
WHERE a.job_id = %s AND a.release_kind = 'cell_lost' GROUP BY a.task_id ORDER BY 1
"""
_WRONG = """
SELECT t.id, t.state, t.preemption_count, t.failure_count, t.system_failure_count,
       array_agg((a.number, a.state, c.name, a.release_kind)::text ORDER BY a.number)
FROM controlplane_task t JOIN controlplane_attempt a ON a.task_id = t.id
JOIN controlplane_cell c ON c.id = a.cell_id
WHERE t.job_id = %(job)s
GROUP BY t.id
HAVING t.state <> 4 OR t.failure_count + t.system_failure_count <> 0
    OR count(*) FILTER (WHERE a.state = 4) <> 1
    OR bool_or(a.released_at IS NULL)
    -- Only tasks of the killed cell pay one system failure, and each of them starts once more.
    OR t.preemption_count <> count(*) FILTER (WHERE c.name = ANY(%(killed)s))
    OR count(*) <> 1 + t.preemption_count
"""
_SUCCESSES = """
SELECT count(*), count(DISTINCT task_id) FROM controlplane_transition
WHERE job_id = %s AND to_state = 4 AND task_id IS NOT NULL
"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a killed fleet. Seconds since it was killed, ascending."""

    lost: dict[str, float]
    rerun: list[float]


def limit_seconds(policy: Policy) -> float:
    """Return the longest time from the last heartbeat until a cell is declared LOST."""
    return policy.lease * policy.lease_factor + MARGIN_SECONDS


ABOUT = Description(
    id="B12",
    title="a tenth of the cells is killed",
    claim="Tasks of killed cells run elsewhere soon after the lease, each once.",
    workload=f"{CELLS} cells, ten fleet processes of ten cells each, run a job of {TASKS:,} tasks"
    " that sleep for a minute. One process gets SIGKILL and is not restarted.",
    peer="Diego publishes 45 s, Iris 50 s.",
    method="Time from the kill to the commit that declares a cell LOST"
    " (`track_commit_timestamp`), and to the start of the next attempt. A run is valid only if"
    " all tasks have SUCCEEDED, tasks of killed cells were charged once to the preemption budget,"
    " and no other task started twice. The limit is the lease (30 s; short size: 10 s), a quarter"
    " of it, and ten seconds. `tests/e2e/test_fleet_killed.py` is the same test with a lease of 3"
    " s.",
    budget_seconds=85,
    targets=(
        at_most(
            1,
            "time until the last killed cell is LOST / limit",
            lambda it: (
                max(seconds for one in it["lost_seconds"] for seconds in one) / it["limit_seconds"]
            ),
        ),
    ),
)


def run(options: Options) -> Result:
    """Run each on a stand of its own."""
    runs, tasks = options.runs, options.pick(tiny=200, short=TASKS, full=TASKS)
    settings = options.pick(tiny=TINY_SETTINGS, short=SHORT_SETTINGS, full={})
    lease = float(settings.get("CELLRUN_LEASE_SECONDS", Policy().lease))
    result = Result(
        "B12",
        f"{CELLS // FLEETS} of {CELLS} cells are killed while {tasks:,} tasks run",
        ("seconds until", "first", "median", "last"),
    )
    limit = limit_seconds(replace(Policy(), lease=lease))
    found: list[Outcome] = []
    busy: list[float] = []
    for _ in range(runs):
        outcome, cores = _one_run(options, tasks, settings)
        found.append(outcome)
        busy.append(cores)
    lost = [list(one.lost.values()) for one in found]
    rerun = [one.rerun for one in found]
    for name, values in ((LOST, lost), (RERUN, rerun)):
        every = sorted(value for one in values for value in one)
        row = (f"{every[0]:.1f}", f"{median(every):.1f}", f"{every[-1]:.1f}")
        result.rows.append((name, *row))
    result.notes.append(f"{runs} runs; the lease is {lease:g} s, the limit {limit:g} s.")
    result.notes.append(
        f"All {tasks:,} tasks SUCCEEDED, each once; those that moved were charged once."
    )
    result.notes.append(others_note(busy))
    result.figures = {
        "limit_seconds": limit,
        "lost_seconds": lost,
        "rerun_seconds": rerun,
        "cores_used_by_others": busy,
    }
    return result


def _one_run(options: Options, tasks: int, settings: dict[str, str]) -> tuple[Outcome, float]:
    cells = options.pick(tiny=20, short=CELLS, full=CELLS)
    seconds = options.pick(tiny=6.0, short=25.0, full=TASK_SECONDS)
    wanted = Wanted(
        cells=cells, fleets=FLEETS, database_options=DATABASE_OPTIONS, settings=settings
    )
    with standing(wanted) as stand, stand.connect() as connection:
        wait_until_judging(stand, connection)
        job_id = start_sleepers(stand, connection, tasks, seconds)
        others = Others(stand.pids)
        process = f"{FLEET}-0"
        killed_at = kill(stand, connection, process)
        # The killed one's CPU time is not counted from here on.
        outcome = follow(stand, connection, job_id, wanted.fleet_cells()[process], killed_at)
        check_counted_once(connection, job_id, tasks, wanted.fleet_cells()[process])
        return outcome, others.cores()


def wait_until_judging(stand: Stand, connection: Connection) -> None:
    """Return when convergence has listened for long enough, after its start, to judge cells."""
    stand.wait_until(
        lambda: connection.execute(_IS_JUDGING).fetchone() == (1,),
        "convergence judges cells",
        seconds=WAIT_SECONDS,
    )


def start_sleepers(stand: Stand, connection: Connection, tasks: int, seconds: float) -> int:
    """A job of tasks that sleep, all of which run; its id."""
    body = {
        "name": "sleepers",
        "replicas": tasks,
        "task_type": "process",
        "command": ["sleep", str(seconds)],
        "resources": {"cpu": 0.01, "memory": "16Mi", "disk": "1Mi"},
    }
    job_id = int(stand.post("/api/v1/jobs", body)["id"])
    stand.wait_until(
        lambda: states_of(connection, job_id) == {TaskState.RUNNING: tasks},
        "all tasks run",
        seconds=WAIT_SECONDS,
    )
    return job_id


def states_of(connection: Connection, job_id: int) -> dict[int, int]:
    """How many of the job's tasks are in each state."""
    return dict(connection.execute(_OF_TASKS, [job_id]).fetchall())


def kill(stand: Stand, connection: Connection, process: str) -> datetime:
    """Kill a fleet process for good; the instant just before."""
    [(killed_at,)] = connection.execute("SELECT clock_timestamp()")
    stand.kill(process)
    return killed_at


def follow(
    stand: Stand, connection: Connection, job_id: int, cells: list[str], killed_at: datetime
) -> Outcome:
    """Wait for the end of the job whose `cells` were killed. Raises RuntimeError."""

    def is_settled() -> bool:
        statement = "SELECT settled_at IS NOT NULL FROM controlplane_job WHERE id = %s"
        return connection.execute(statement, [job_id]).fetchone() == (True,)

    stand.wait_until(is_settled, "the job is settled", seconds=WAIT_SECONDS)
    lost: dict[str, float] = dict(connection.execute(_LOST, {"killed_at": killed_at}).fetchall())
    if sorted(lost) != sorted(cells):
        raise RuntimeError(f"{cells} were killed, {sorted(lost)} were declared LOST")
    rerun = [seconds for (seconds,) in connection.execute(_RERUN, [killed_at, job_id])]
    if None in (*lost.values(), *rerun):
        raise RuntimeError(f"an instant is missing: {lost}, {rerun}")
    return Outcome(lost, rerun)


def check_counted_once(connection: Connection, job_id: int, tasks: int, killed: list[str]) -> None:
    """Every task succeeded in one attempt, and only what was on `killed` cells began anew, once.

    Raises RuntimeError.
    """
    wrong = connection.execute(_WRONG, {"job": job_id, "killed": killed}).fetchall()
    if wrong:
        raise RuntimeError(f"{len(wrong)} tasks of job {job_id} went wrong: {wrong[:5]}")
    if states_of(connection, job_id) != {TaskState.SUCCEEDED: tasks}:
        raise RuntimeError(f"job {job_id}: {states_of(connection, job_id)}")
    if connection.execute(_SUCCESSES, [job_id]).fetchone() != (tasks, tasks):
        raise RuntimeError(f"job {job_id}: a task succeeded twice in its history")
