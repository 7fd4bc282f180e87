"""The open-loop generator counts what a slow system delays, and snapshots are really held."""

import os
import signal
import threading
from collections.abc import Iterator

import psycopg
import pytest

from benchmarks.generator import SETTINGS, Connection, Load, OpenLoop, measure
from benchmarks.snapshots import READERS, hold_snapshot, run_readers
from benchmarks.stand import Stand, Wanted, standing
from tests.e2e.stack import check_invariants, remnants

pytestmark = pytest.mark.stack

LOAD = Load(40, 6, jobs_each=2, tasks_each=1)
STOPPED_AFTER, STOPPED_SECONDS = 1.9, 2.2
"""Web does not run in the seconds 2 and 3 of the load, in which 80 tasks are due."""


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    with standing(Wanted(cells=4, settings=SETTINGS)) as found:
        yield found
        check_invariants(found.plan.control_environment("command"))
    assert remnants(found.plan.home.root.parent) == []


@pytest.fixture
def connection(stand: Stand) -> Iterator[Connection]:
    with stand.connect() as connection:
        yield connection


def test_stop_of_web_delays_all_tasks_that_were_due_meanwhile(
    stand: Stand, connection: Connection
) -> None:
    """A generator that waits for answers would delay only the tasks of its few open requests."""
    web = stand.pids["web"]
    resumed = STOPPED_AFTER + STOPPED_SECONDS
    timers = [
        threading.Timer(STOPPED_AFTER, os.killpg, (web, signal.SIGSTOP)),
        threading.Timer(resumed, os.killpg, (web, signal.SIGCONT)),
    ]
    for timer in timers:
        timer.start()
    trace = OpenLoop(stand, LOAD).run()
    for timer in timers:
        timer.join()
    figures = measure(connection, LOAD, trace)
    assert figures["tasks"] == LOAD.tasks == 240
    assert sum(count for _, count in figures["ended_by_second"]) == 240
    p50 = {second: value for second, value, _ in figures["by_second"]}
    # The last task of second 2 is due a second before web runs again.
    assert p50[2] >= 1000 * (resumed - 3)
    assert p50[3] >= 1000 * (resumed - 4)
    assert figures["milliseconds"]["max"] >= 1000 * (STOPPED_SECONDS - LOAD.interval)
    assert max(tasks for _, tasks in figures["backlog"]) >= 60
    assert figures["backlog"][-1][0] >= LOAD.seconds


def test_snapshot_is_held_with_a_transaction_id_beyond_the_timeout_of_idle_transactions(
    stand: Stand, connection: Connection
) -> None:
    assert holders(connection) == []
    connection.execute("ALTER SYSTEM SET idle_in_transaction_session_timeout = '1s'")
    connection.execute("SELECT pg_reload_conf()")
    with hold_snapshot(stand, 1):
        (first,) = holders(connection)
        assert first[0] is True
        stand.wait_until(lambda: oldest_seconds(connection) > 2, "it is idle for 2 s", seconds=10)
        assert holders(connection) == [first]
    stand.wait_until(lambda: holders(connection) == [], "the snapshot is released", seconds=10)
    connection.execute("ALTER SYSTEM RESET idle_in_transaction_session_timeout")
    connection.execute("SELECT pg_reload_conf()")


def test_readers_hold_snapshots_at_the_same_time(stand: Stand, connection: Connection) -> None:
    with run_readers(stand, 30):
        stand.wait_until(
            lambda: len(holders(connection)) == READERS, "all readers overlap", seconds=10
        )
        assert {has_xid for has_xid, _ in holders(connection)} == {False}


def oldest_seconds(connection: Connection) -> float:
    """Return the longest time that a transaction has been idle."""
    statement = """
        SELECT coalesce(max(extract(epoch FROM clock_timestamp() - state_change)), 0)::float
        FROM pg_stat_activity WHERE state = 'idle in transaction'
        """
    ((seconds,),) = connection.execute(statement)
    return float(seconds)


def holders(connection: psycopg.Connection[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """Return the idle transactions of this process that hold a snapshot."""
    statement = """
        SELECT backend_xid IS NOT NULL, pid FROM pg_stat_activity
        WHERE state = 'idle in transaction' AND backend_xmin IS NOT NULL
          AND application_name NOT LIKE 'cellrun-%'
        """
    return connection.execute(statement).fetchall()
