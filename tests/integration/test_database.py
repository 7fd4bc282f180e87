"""The clock and the connections to PostgreSQL cost few statements, and stay right."""

from datetime import timedelta

import pytest
from django.db import close_old_connections, connection
from django.test.utils import CaptureQueriesContext

from controlplane.clock import READ_SECONDS, DatabaseClock
from controlplane.queries.sql import scalar


class Elapsed:
    """The time of the machine, which the test moves. Each reading may take `each` seconds."""

    def __init__(self, *, each: float = 0.0) -> None:
        self.seconds, self.each = 1000.0, each

    def __call__(self) -> float:
        self.seconds += self.each
        return self.seconds


def read(clock: DatabaseClock, statements: int) -> timedelta:
    """Return by how much the clock is ahead of PostgreSQL; check how many statements it takes."""
    with CaptureQueriesContext(connection) as captured:
        now = clock()
    assert len(captured) == statements
    return now - scalar("SELECT clock_timestamp()")


@pytest.mark.django_db
def test_clock_is_read_again_after_ten_seconds() -> None:
    elapsed = Elapsed()
    clock = DatabaseClock(elapsed)
    margin = timedelta(seconds=1)
    assert abs(read(clock, 1)) < margin
    assert abs(read(clock, 0)) < margin
    elapsed.seconds += READ_SECONDS - 1
    # The machine has counted nine seconds more, which PostgreSQL has not.
    assert abs(read(clock, 0) - timedelta(seconds=READ_SECONDS - 1)) < margin
    elapsed.seconds += 1
    assert abs(read(clock, 1)) < margin


@pytest.mark.django_db
def test_slow_reading_is_used_once() -> None:
    clock = DatabaseClock(Elapsed(each=0.02))
    assert abs(read(clock, 1)) < timedelta(seconds=1)
    assert abs(read(clock, 1)) < timedelta(seconds=1)


@pytest.mark.django_db(transaction=True)
def test_healthy_connection_is_checked_without_a_statement() -> None:
    own = scalar("SELECT pg_backend_pid()")
    close_old_connections()
    with CaptureQueriesContext(connection) as captured:
        assert scalar("SELECT pg_backend_pid()") == own
    assert len(captured) == 1
    # What a check by a statement would leave.
    assert connection.is_usable()
    last = "SELECT query FROM pg_stat_activity WHERE pid = pg_backend_pid()"
    assert scalar(last) == last


@pytest.mark.django_db(transaction=True)
def test_ended_connection_is_replaced_before_the_next_statement() -> None:
    own = scalar("SELECT pg_backend_pid()")
    other = connection.copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s, 5000)", [own])
    finally:
        other.close()
    close_old_connections()
    assert scalar("SELECT pg_backend_pid()") != own


@pytest.mark.django_db(transaction=True)
def test_connection_with_a_failed_statement_is_checked_by_one() -> None:
    own = scalar("SELECT pg_backend_pid()")
    connection.errors_occurred = True
    close_old_connections()
    assert scalar("SELECT pg_backend_pid()") == own
    assert not connection.errors_occurred
