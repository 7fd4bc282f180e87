"""Old work in any amount: ended jobs with attempts and history, copied from the rows of one."""

from collections.abc import Sequence
from typing import Any

import psycopg

from benchmarks.stand import Stand
from benchmarks.throughput import noop_job

BASE = 1_000_000_000
"""Where the ids of copies begin, far behind those of jobs that are submitted meanwhile."""

Connection = psycopg.Connection[tuple[Any, ...]]

# Of version 7, older than those of attempts that run meanwhile, and growing with the task.
_UID = "lpad(to_hex(1750000000000 + n.task), 12, '0') || '7000' || '8000000000000000'"
_CELLS = "ARRAY(SELECT id FROM controlplane_cell ORDER BY id)"
_CELL = f"({_CELLS})[1 + n.task % greatest(cardinality({_CELLS}) - 1, 1)]"
_STEPS = "SELECT count(*) FROM controlplane_transition WHERE job_id = %s AND task_id IS NOT NULL"


def make_old_jobs(
    stand: Stand,
    connection: Connection,
    sizes: Sequence[tuple[int, int]],
    *,
    jobs: int = 0,
    tasks: int = 0,
) -> None:
    """Make ended jobs that never expire; `sizes`: pairs of a number of jobs and of their tasks.

    Ten of their tasks ended each second, on all cells but the newest, which has copies of none.
    `jobs`, `tasks`: the numbers of copies that exist.
    """
    key = stand.post("/api/v1/jobs", noop_job(1))["id"]

    def has_settled() -> bool:
        found = connection.execute(
            "SELECT settled_at IS NOT NULL FROM controlplane_job WHERE id = %s", [key]
        ).fetchone()
        return found == (True,)

    stand.wait_until(has_settled, "the first job has settled", seconds=30)
    (steps,) = connection.execute(_STEPS, [key]).fetchone() or (0,)
    whole = tasks + sum(count * size for count, size in sizes)
    with connection.transaction():
        for count, size in sizes:
            _copy_jobs(connection, key, steps, jobs, tasks, count, size, whole)
            jobs, tasks = jobs + count, tasks + count * size
    connection.execute("VACUUM ANALYZE")


def _copy_jobs(
    connection: Connection,
    key: int,
    steps: int,
    job: int,
    task: int,
    count: int,
    size: int,
    whole: int,
) -> None:
    """Copy the job `key` to `count` jobs of `size` tasks each, from these numbers on."""
    number = f"{BASE} + n.job"
    each = (
        f"SELECT {job} + g AS job, {whole - task} - g * {size} AS age"
        f" FROM generate_series(0, {count - 1}) g"
    )
    ids = {"id": number, "expires_at": "NULL", "guid": "NULL", "task_count": str(size)}
    ids["is_usage_counted"] = "true"
    _copy(connection, "job", f"id = {key}", each, ids)
    of_job = {"job_id": number}
    group = {"id": number, "task_count": str(size), "replicas": str(size), **of_job}
    _copy(connection, "taskgroup", f"job_id = {key}", each, group)
    each = (
        f"SELECT {job} + g / {size} AS job, {task} + g AS task, g % {size} AS index,"
        f" {whole - task} - g AS age FROM generate_series(0, {count * size - 1}) g"
    )
    uid = {"attempt_uid": f"({_UID})::uuid"}
    of_group = {"group_id": number, **of_job}
    ids = {"id": f"{BASE} + n.task", "index": "n.index", **uid}
    _copy(connection, "task", f"job_id = {key}", each, of_group | ids)
    of_task = {"task_id": f"{BASE} + n.task"}
    attempt = of_group | of_task | {"uid": uid["attempt_uid"], "cell_id": _CELL}
    _copy(connection, "attempt", f"job_id = {key}", each, attempt)
    step = {"id": f"{BASE} + n.task * {steps} + s.nth", **uid}
    source = f"job_id = {key} AND task_id IS NOT NULL"
    _copy(connection, "transition", source, each, of_job | of_task | step)


def _copy(
    connection: Connection, table: str, source: str, numbers: str, other: dict[str, str]
) -> None:
    """Rows of `source` once for each of `numbers`, with some columns `other`.

    Instants are earlier by a tenth of a second for each of `age`.
    """
    found = connection.execute(
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = %s",
        [f"controlplane_{table}"],
    )
    columns = found.fetchall()
    names = [f'"{name}"' for name, _ in columns]
    earlier = " - n.age * interval '0.1 s'"
    values = [
        other.get(name, f's."{name}"' + (earlier if kind.startswith("timestamp") else ""))
        for name, kind in columns
    ]
    connection.execute(
        f"""
        INSERT INTO controlplane_{table} ({", ".join(names)}) SELECT {", ".join(values)}
        FROM ({numbers}) n, (
            SELECT *, row_number() OVER () - 1 AS nth FROM controlplane_{table} WHERE {source}
        ) s
        """
    )
