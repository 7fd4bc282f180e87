"""What PostgreSQL takes at least for whole lives of tasks: their rows, by three statements.

The rows are those of a task that a stand has run, in the same tables, indexes and constraints. One
statement inserts the tasks, one places them with their attempts, one ends them.
"""

from typing import Any

import psycopg

from benchmarks.stand import Stand
from benchmarks.usage import cpu_seconds, spent

Connection = psycopg.Connection[tuple[Any, ...]]

# Behind the copies of `benchmarks.copies`; indexes behind those of the largest job.
BASE = 2_000_000_000
_FIRST_INDEX = 1_000_000
PENDING, ASSIGNED = 1, 9

_UID = "(lpad(to_hex(1760000000000 + n), 12, '0') || '70008000000000000000')::uuid"
_NEW_TASK = {
    "id": f"{BASE} + n",
    "index": f"{_FIRST_INDEX} + n",
    "state": str(PENDING),
    "attempt_number": "0",
    "attempt_uid": "NULL",
    "attempt_open": "false",
    "started_at": "NULL",
    "finished_at": "NULL",
}
_NEW_ATTEMPT = {
    "uid": "p.attempt_uid",
    "task_id": "p.id",
    "state": str(ASSIGNED),
    "phase": "''",
    "phase_number": "0",
    "report_seq": "0",
    "container_id": "''",
    "exit_code": "NULL",
    "usage": "NULL",
    "started_at": "NULL",
    "finished_at": "NULL",
    "released_at": "NULL",
    "release_kind": "''",
}
_END_OF_TASK = ("state", "attempt_open", "started_at", "finished_at", "updated_at")
_END_OF_ATTEMPT = (
    *("state", "state_since", "phase", "phase_number", "report_seq", "container_id", "exit_code"),
    *("usage", "started_at", "finished_at", "released_at", "release_kind"),
)


def measure_rows(stand: Stand, connection: Connection, tasks: int, *, before: int = 0) -> float:
    """Return the CPU of PostgreSQL in ms for each of `tasks` lives, written beside the real ones.

    Call it last: the counts of the group do not contain these tasks. `before`: how many such tasks
    exist.
    """
    found = connection.execute(
        "SELECT id, attempt_uid FROM controlplane_task WHERE state = 4 ORDER BY id DESC LIMIT 1"
    ).fetchone()
    assert found is not None
    task, uid = found
    pids = {"postgres": stand.pids["postgres"]}
    used = cpu_seconds(pids)
    with connection.transaction():
        for statement in _statements(connection, task, uid, before, tasks):
            connection.execute(statement)
    return 1000 * spent(used, cpu_seconds(pids))["postgres"] / tasks


def _statements(
    connection: Connection, task: int, uid: object, before: int, count: int
) -> list[bytes]:
    numbers = f"generate_series({before + 1}, {before + count}) n"
    insert = f"""
        INSERT INTO controlplane_task ({_names(connection, "task")})
        SELECT {_values(connection, "task", _NEW_TASK)}
        FROM controlplane_task s, {numbers} WHERE s.id = {task}
        """
    place = f"""
        WITH placed AS (
            UPDATE controlplane_task t SET state = {ASSIGNED}, attempt_number = 1,
                attempt_uid = i.uid, attempt_open = true, updated_at = now()
            FROM (SELECT {BASE} + n AS id, {_UID} AS uid FROM {numbers}) i
            WHERE t.id = i.id RETURNING t.id, t.attempt_uid
        ), attempted AS (
            INSERT INTO controlplane_attempt ({_names(connection, "attempt")})
            SELECT {_values(connection, "attempt", _NEW_ATTEMPT)}
            FROM placed p, controlplane_attempt s WHERE s.uid = '{uid}'
        )
        {_history(connection, task, "placed p", "s.nth = 1")}
        """
    end = f"""
        WITH ended AS (
            UPDATE controlplane_task t SET {_copied(_END_OF_TASK)} FROM controlplane_task s
            WHERE s.id = {task} AND t.id > {BASE + before} AND t.id <= {BASE + before + count}
            RETURNING t.id, t.attempt_uid
        ), released AS (
            UPDATE controlplane_attempt a SET {_copied(_END_OF_ATTEMPT)}
            FROM controlplane_attempt s, ended e
            WHERE s.uid = '{uid}' AND a.uid = e.attempt_uid
        )
        {_history(connection, task, "ended p", "s.nth > 1")}
        """
    return [statement.encode() for statement in (insert, place, end)]


def _history(connection: Connection, task: int, source: str, condition: str) -> str:
    """Return the insertion of the rows of the task's history that meet `condition`."""
    names = [name for name in _columns(connection, "transition") if name != "id"]
    other = {"task_id": "p.id", "attempt_uid": "p.attempt_uid"}
    values = ", ".join(other.get(name, f"s.{name}") for name in names)
    return f"""
        INSERT INTO controlplane_transition ({", ".join(names)})
        SELECT {values} FROM {source}, (
            SELECT *, row_number() OVER (ORDER BY id) AS nth FROM controlplane_transition
            WHERE task_id = {task}
        ) s WHERE {condition}
        """


def _names(connection: Connection, table: str) -> str:
    return ", ".join(f'"{name}"' for name in _columns(connection, table))


def _values(connection: Connection, table: str, other: dict[str, str]) -> str:
    return ", ".join(other.get(name, f's."{name}"') for name in _columns(connection, table))


def _copied(names: tuple[str, ...]) -> str:
    return ", ".join(f"{name} = s.{name}" for name in names)


def _columns(connection: Connection, table: str) -> list[str]:
    found = connection.execute(
        "SELECT column_name FROM information_schema.columns WHERE table_name = %s"
        " AND is_generated = 'NEVER' ORDER BY ordinal_position",
        [f"controlplane_{table}"],
    )
    return [name for (name,) in found]
