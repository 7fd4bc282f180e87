"""A suspended process of the control plane with locked rows blocks no other for long."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from tests.e2e.stack import RunningStack, open_folder, wait_until
from tests.e2e.work import count_states, session_of, wait_for_end

Database = psycopg.Connection[tuple[Any, ...]]

_WAITS = """
SELECT count(*) FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'
"""
_HOLDS = """
SELECT count(*) FROM pg_stat_activity
WHERE application_name = %s AND state = 'idle in transaction' AND backend_xid IS NOT NULL
"""


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    with (
        open_folder() as folder,
        RunningStack(folder / "home", cells=1, engine="process") as running,
    ):
        yield running


@contextmanager
def stopped_with_rows_locked(stack: RunningStack, name: str, lock: str) -> Iterator[None]:
    """Within, the process waits for the rows of `lock`; then it is stopped, and is given them.

    Returns when another process may have them.
    """
    pid, address = stack.pid_of(name), stack.environment["DATABASE_URL"]

    def has(statement: str) -> bool:
        with psycopg.connect(address) as database:
            [(count,)] = database.execute(statement, [f"cellrun-{name}"]).fetchall()
        return bool(count)

    try:
        with psycopg.connect(address) as database:
            database.execute(lock)
            yield
            wait_until(lambda: has(_WAITS), seconds=60, what=f"{name} waits for rows")
            os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: has(_HOLDS), seconds=30, what=f"{name} stands still with rows locked")
        wait_until(lambda: not has(_HOLDS), seconds=60, what="its transaction is ended")
    finally:
        os.kill(pid, signal.SIGCONT)


def quick(script: str, **fields: Any) -> dict[str, Any]:
    """A job of small processes."""
    command, resources = ["sh", "-c", script], {"cpu": 0.01, "memory": "16Mi", "disk": "1Mi"}
    given = {"name": "quick", "task_type": "process", "command": command, "resources": resources}
    return {**given, **fields}


def test_suspended_inbox_loses_its_locks_on_jobs(stack: RunningStack) -> None:
    session = session_of(stack)
    job = session.submit(quick("sleep 3"))["id"]
    wait_until(
        lambda: count_states(session.job(job))["RUNNING"] == 1, seconds=60, what="the task runs"
    )
    lock = f"SELECT id FROM controlplane_job WHERE id = {job} FOR NO KEY UPDATE"
    with stopped_with_rows_locked(stack, "inbox", lock):
        pass
    # The cell reports again what it was about to write.
    assert wait_for_end(session, job)["state"] == "SUCCEEDED"


def test_suspended_placement_loses_its_locks_on_cells(stack: RunningStack) -> None:
    session = session_of(stack)
    lock = "SELECT id FROM controlplane_cell FOR NO KEY UPDATE"
    with stopped_with_rows_locked(stack, "placement", lock):
        job = session.submit(quick("true", replicas=20))["id"]
    assert wait_for_end(session, job)["state"] == "SUCCEEDED"


def test_no_process_has_exited(stack: RunningStack) -> None:
    output = stack.output.read_text()
    assert "exited: " not in output, output
