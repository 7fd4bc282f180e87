"""B3: many queues, each with its quota (the two configurations of Kueue's performance tests)."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from benchmarks.description import Description, Figures, Options, at_most
from benchmarks.ideal_queue import Kind, ideal_seconds
from benchmarks.report import Result, median, others_note
from benchmarks.stand import Stand, Wanted, standing
from benchmarks.usage import Others
from controlplane.contract.states import TaskState
from controlplane.domain.state.states import Band

CELLS = 100
CAPACITY = "cpu=240,memory=640Gi,disk=4000Gi,gpu=0"
QUOTA = 20
WAIT_SECONDS = 900.0
BATCH = 500
SETTINGS = {"CELLRUN_MAX_UNFINISHED_TASKS_PER_USER": "100000"}

Connection = psycopg.Connection[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration of Kueue's tests, with its own seconds."""

    name: str
    queues: int
    kinds: tuple[Kind, ...]
    kueue_seconds: float

    @property
    def floor(self) -> float:
        """Seconds that the quota of a queue leaves its work no way below."""
        return sum(kind.count * kind.cpu * kind.seconds for kind in self.kinds) / QUOTA

    @property
    def ideal(self) -> float:
        """Seconds that a scheduler without delay takes for a queue."""
        return ideal_seconds(self.kinds, QUOTA)

    @property
    def tasks(self) -> int:
        """Tasks of all queues."""
        return self.queues * sum(kind.count for kind in self.kinds)


BASELINE = Configuration(
    "baseline",
    30,
    (
        Kind("batch", 350, 1, 0.2, 0.1),
        Kind("interactive", 100, 5, 0.5, 0.5),
        Kind("production", 50, 20, 1.0, 1.2),
    ),
    351.1,
)
LARGE = Configuration(
    "large",
    1_000,
    (
        Kind("batch", 35, 1, 0.15, 0.06),
        Kind("interactive", 11, 5, 0.35, 0.3),
        Kind("production", 4, 20, 0.7, 0.7),
    ),
    1_179.0,
)


def _of_floor(figures: Figures) -> float:
    return median(one["seconds"] / one["floor_with_evicted"] for one in figures["baseline"])


ABOUT = Description(
    id="B3",
    title="queues with quotas",
    claim="Queues with quotas and preemption take little more time than their quotas require.",
    workload="The two configurations of Kueue's performance tests: 30 queues with 15,000 tasks"
    f" and 1,000 queues with 50,000. A queue is a project with a quota of {QUOTA} cpu; queues do"
    " not borrow. Small (1 cpu), medium (5) and large tasks (20) arrive at their rates, each as a"
    " job, in the bands batch, interactive and production with preemption. The short size has a"
    " third of the tasks of each kind.",
    peer="Kueue's figures (351 s and 1,179 s) come from other machines, a Kubernetes API server"
    " and simulated work; those of Cellrun use simulated containers, with history and fsync.",
    method="Time from the first submission until all jobs are SUCCEEDED. The floor is the minimum"
    " time that the quota of one queue allows, including evicted work. Without delay: what a"
    " scheduler that starts and evicts tasks in no time takes, calculated from the arrivals; large"
    " tasks leave gaps between them that no other task fits in.",
    budget_seconds=100,
    targets=(
        at_most(1.15, "baseline: seconds / floor", _of_floor),
        at_most(
            20, "large: seconds", lambda it: median(one["seconds"] for one in it["large"]), "s"
        ),
    ),
)


def run(options: Options) -> Result:
    """Run both configurations."""
    share = options.pick(tiny=0.02, short=1 / 3, full=1.0)
    result = Result(
        "B3",
        f"queues with quotas, {CELLS} cells",
        (
            "",
            "tasks",
            "seconds",
            "floor",
            "with evicted",
            "ratio",
            "without delay",
            "tasks/s",
            "Kueue s",
        ),
    )
    busy = []
    for configuration in (_shorten(BASELINE, share), _shorten(LARGE, share)):
        found = []
        for _ in range(options.runs):
            wanted = Wanted(cells=CELLS, settings=SETTINGS, capacity=CAPACITY)
            with standing(wanted) as stand, stand.connect() as connection:
                others = Others(stand.pids)
                found.append(_one_run(stand, connection, configuration))
                busy.append(others.cores())
        result.rows.append(_row(configuration, found))
        result.figures[configuration.name] = found
    result.notes.append(
        "Kueue's seconds are its own, with a Kubernetes API server and simulated work; those of"
        " Cellrun use simulated containers, history and fsync."
    )
    result.notes.append(others_note(busy))
    result.figures["cores_used_by_others"] = busy
    return result


def _shorten(configuration: Configuration, share: float) -> Configuration:
    """Return the configuration with a share of the tasks of each kind; at least one of each."""
    kinds = tuple(
        replace(kind, count=max(round(kind.count * share), 1)) for kind in configuration.kinds
    )
    return replace(configuration, kinds=kinds)


def _row(configuration: Configuration, found: list[dict[str, Any]]) -> tuple[str, ...]:
    seconds = median(one["seconds"] for one in found)
    floor = median(one["floor_with_evicted"] for one in found)
    return (
        f"{configuration.name}: {configuration.queues:,} queues",
        f"{configuration.tasks:,}",
        f"{seconds:.1f}",
        f"{configuration.floor:.1f}",
        f"{floor:.1f}",
        f"{seconds / floor:.2f}",
        f"{configuration.ideal:.1f}",
        f"{configuration.tasks / seconds:,.0f}",
        f"{configuration.kueue_seconds:,.0f}",
    )


def _one_run(stand: Stand, connection: Connection, configuration: Configuration) -> dict[str, Any]:
    _make_queues(connection, configuration.queues)
    began = time.perf_counter()
    late = [0.0]
    faults: list[BaseException] = []
    submitter = threading.Thread(
        target=_submit, args=(stand, configuration, began, late, faults), daemon=True
    )
    submitter.start()
    statement = "SELECT count(*) FROM controlplane_job WHERE state = 4"

    def is_over() -> bool:
        if faults:
            raise faults[0]
        time.sleep(0.05)
        return connection.execute(statement).fetchone() == (configuration.tasks,)

    stand.wait_until(is_over, f"{configuration.tasks} jobs succeeded", seconds=WAIT_SECONDS)
    seconds = time.perf_counter() - began
    lost = _evicted_seconds(connection)
    busiest = max(lost.values(), default=0.0) / QUOTA
    return {
        "seconds": seconds,
        "floor": configuration.floor,
        "ideal": configuration.ideal,
        "floor_with_evicted": configuration.floor + busiest,
        "evicted_cpu_seconds": sum(lost.values()),
        "submitted_late_seconds": late[0],
        "started_after_seconds": _waits(connection),
        "ends": _ends(connection),
    }


def _make_queues(connection: Connection, queues: int) -> None:
    """Make projects, each with its quota; each user has a role in all, and may use all bands."""
    connection.execute(
        """
        INSERT INTO controlplane_membership (user_id, domain_id, role, created_at)
        SELECT DISTINCT ON (m.user_id) m.user_id, p.domain_id, m.role, m.created_at
        FROM controlplane_membership m JOIN controlplane_project p ON p.id = m.project_id
        WHERE m.user_id IS NOT NULL ORDER BY m.user_id
        """
    )
    connection.execute(
        """
        INSERT INTO controlplane_quota (default_for, resources, weight, highest_band)
        VALUES ('user', '{}', 1, 'production')
        ON CONFLICT (default_for) WHERE default_for <> ''
        DO UPDATE SET highest_band = EXCLUDED.highest_band, running_tasks = NULL
        """
    )
    connection.execute(
        """
        WITH made AS (
            INSERT INTO controlplane_project (domain_id, name)
            SELECT d.id, 'queue-' || n FROM controlplane_domain d, generate_series(1, %s) n
            WHERE d.name = 'default' RETURNING id
        )
        INSERT INTO controlplane_quota (project_id, resources, weight, default_for, highest_band)
        SELECT id, jsonb_build_object('cpu_millis', %s::int), 1, '', 'production' FROM made
        """,
        [queues, QUOTA * 1000],
    )


def _submit(
    stand: Stand,
    configuration: Configuration,
    began: float,
    late: list[float],
    faults: list[BaseException],
) -> None:
    """All that is due by now in one batch, until all is submitted; `late`: at most, by so much."""
    try:
        due = sorted(_arrivals(configuration), key=lambda item: item[0])
        while due:
            now = time.perf_counter() - began
            if due[0][0] > now:
                time.sleep(min(due[0][0] - now, 0.05))
                continue
            ready = [item for item in due[:BATCH] if item[0] <= now]
            due = due[len(ready) :]
            stand.post("/api/v1/jobs:batch", [body for _, body in ready])
            late[0] = max(late[0], time.perf_counter() - began - ready[0][0])
    except BaseException as fault:
        faults.append(fault)


def _arrivals(configuration: Configuration) -> Iterator[tuple[float, dict[str, Any]]]:
    """When each task comes, and as which job."""
    for kind in configuration.kinds:
        for number in range(kind.count):
            for queue in range(1, configuration.queues + 1):
                yield number * kind.each_seconds, _job(kind, f"queue-{queue}")


def _job(kind: Kind, project: str) -> dict[str, Any]:
    return {
        "name": f"{kind.band}-task",
        "project": project,
        "band": kind.band,
        "task_type": "process",
        "command": ["sleep", str(kind.seconds)],
        "resources": {"cpu": kind.cpu, "memory": "16Mi", "disk": "1Mi"},
    }


def _evicted_seconds(connection: Connection) -> Counter[int]:
    """By queue, the cpu seconds that attempts held that did not succeed."""
    found = connection.execute(
        """
        SELECT j.project_id, sum((g.resources->>'cpu_millis')::float / 1000
            * extract(epoch FROM a.released_at - a.started_at))::float
        FROM controlplane_attempt a
        JOIN controlplane_taskgroup g ON g.id = a.group_id
        JOIN controlplane_job j ON j.id = a.job_id
        WHERE a.started_at IS NOT NULL AND a.released_at IS NOT NULL AND a.state <> 4
        GROUP BY 1
        """
    ).fetchall()
    return Counter(dict(found))


def _waits(connection: Connection) -> dict[str, float]:
    """By band, the seconds from submission until the attempt that succeeded started, on average."""
    names = {int(band): band.name.lower() for band in Band}
    found = connection.execute(
        """
        SELECT j.band, avg(extract(epoch FROM a.started_at - j.created_at))::float
        FROM controlplane_attempt a JOIN controlplane_job j ON j.id = a.job_id
        WHERE a.state = 4 GROUP BY 1
        """
    ).fetchall()
    return {names[band]: seconds for band, seconds in found}


def _ends(connection: Connection) -> dict[str, int]:
    """How many attempts ended in which state."""
    statement = "SELECT state, count(*) FROM controlplane_attempt GROUP BY 1"
    return {TaskState(state).name: count for state, count in connection.execute(statement)}
