"""B4: thousands of assigned tasks are reported RUNNING, then a steady round (Iris's sweep)."""

import time
from typing import Any

import psycopg

from benchmarks.description import Description, Options, at_most
from benchmarks.killed_fleet import start_sleepers
from benchmarks.report import Result, median, others_note
from benchmarks.stand import FLEET, Stand, Wanted, standing
from benchmarks.throughput import WARM_UP_TASKS, submit_and_wait
from benchmarks.usage import Others, cpu_seconds, spent

CELLS = 79
TASKS = 5_000
SLEEP_SECONDS = 100_000.0
REST_SECONDS = 10.0
HEARTBEAT_SECONDS = 5.0
ROUNDS = 6

_SWEEP = """
SELECT extract(epoch FROM
    max(pg_xact_commit_timestamp(xmin)) FILTER (WHERE to_state = 3)
    - max(pg_xact_commit_timestamp(xmin)) FILTER (WHERE to_state = 9))::float,
  extract(epoch FROM
    max(pg_xact_commit_timestamp(xmin)) FILTER (WHERE to_state = 3)
    - min(pg_xact_commit_timestamp(xmin)) FILTER (WHERE to_state = 9))::float
FROM controlplane_transition WHERE job_id = %s AND task_id IS NOT NULL
"""


ABOUT = Description(
    id="B4",
    title="the sweep of a large cluster",
    claim="Reports of thousands of starts are recorded at once, and a steady round is cheap.",
    workload=f"A job of {TASKS:,} sleeping tasks is placed on {CELLS} cells in one fleet process;"
    " then all of them run and nothing happens.",
    peer="Iris publishes 3.75 s for 5,000 tasks on 79 workers, and 298 ms for a steady round.",
    method="The sweep is the time from the commit that assigns the last task to the commit that"
    " records the last start (`track_commit_timestamp`), transport and cells included. A steady"
    " round is the CPU time that the inbox and PostgreSQL use while each cell sends one heartbeat"
    f" (5 s), on average over {ROUNDS} rounds.",
    budget_seconds=70,
    targets=(
        at_most(0.5, "sweep", lambda it: median(one["sweep_seconds"] for one in it["runs"]), "s"),
        at_most(
            60, "steady round", lambda it: median(one["round_cpu_ms"] for one in it["runs"]), "ms"
        ),
    ),
)


def run(options: Options) -> Result:
    """Run each on a stand of its own: the tasks do not end."""
    tasks = options.pick(tiny=100, short=TASKS, full=TASKS)
    rounds = options.pick(tiny=1, short=ROUNDS // 2, full=ROUNDS)
    rest = options.pick(tiny=1.0, short=REST_SECONDS, full=REST_SECONDS)
    columns = ("", "sweep s", "from the first placement s", "steady round, CPU ms", "of the fleet")
    result = Result("B4", f"{tasks:,} tasks on {CELLS} cells are reported RUNNING", columns)
    found: list[dict[str, float]] = []
    wanted = Wanted(cells=CELLS, database_options=["track_commit_timestamp=on"])
    for _ in range(options.runs):
        with standing(wanted) as stand, stand.connect() as connection:
            submit_and_wait(stand, connection, [min(WARM_UP_TASKS, tasks)])
            found.append(_one_run(stand, connection, tasks, rest, rounds))
    keys = ("sweep_seconds", "dispatch_seconds", "round_cpu_ms", "fleet_cpu_ms")
    result.rows.append(
        ("Cellrun", *(f"{median(one[key] for one in found):.3g}" for key in keys)),
    )
    result.notes.append(others_note(one["cores_used_by_others"] for one in found))
    result.figures = {"runs": found}
    return result


def _one_run(
    stand: Stand,
    connection: psycopg.Connection[tuple[Any, ...]],
    tasks: int,
    rest: float,
    rounds: int,
) -> dict[str, float]:
    others = Others(stand.pids)
    job = start_sleepers(stand, connection, tasks, SLEEP_SECONDS)
    ((sweep, dispatch),) = connection.execute(_SWEEP, [job])
    time.sleep(rest)
    before = cpu_seconds(stand.pids)
    time.sleep(rounds * HEARTBEAT_SECONDS)
    used = spent(before, cpu_seconds(stand.pids))
    return {
        "sweep_seconds": sweep,
        "dispatch_seconds": dispatch,
        "round_cpu_ms": 1000 * sum(used[name] for name in ("inbox", "postgres")) / rounds,
        "fleet_cpu_ms": 1000 * used[FLEET] / rounds,
        "cores_used_by_others": others.cores(),
    }
