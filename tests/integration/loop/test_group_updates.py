"""Counts of groups change without new entries in the indexes of their table."""

from controlplane.contract.states import TaskState as S
from controlplane.queries.sql import first_row, scalar
from tests.integration.loop.conftest import Loop

JOBS = 30


def updates() -> tuple[int, int]:
    """Return how many rows of groups were updated, and how many of them in place."""
    scalar("SELECT pg_stat_force_next_flush()")
    row = first_row(
        """
        SELECT pg_stat_get_tuples_updated(t) + pg_stat_get_xact_tuples_updated(t) AS updated,
               pg_stat_get_tuples_hot_updated(t)
                   + pg_stat_get_xact_tuples_hot_updated(t) AS in_place
        FROM CAST('controlplane_taskgroup' AS regclass) AS t
        """
    )
    assert row is not None
    return row


def test_groups_of_short_jobs_are_updated_in_place(loop: Loop) -> None:
    cell = loop.cell()
    before = updates()
    jobs = [loop.submit() for _ in range(JOBS)]
    waiting = list(jobs)
    while waiting:
        loop.place()
        placed = [job for job in waiting if loop.attempts(job)]
        assert placed, "no job was placed"
        for job in placed:
            cell.end(loop.attempts(job)[0], S.SUCCEEDED, exit_code=0)
            waiting.remove(job)
    assert {state for job in jobs for state in loop.states(job)} == {"SUCCEEDED"}
    updated, in_place = (now - then for now, then in zip(updates(), before, strict=True))
    # Placement and the end of each group's task.
    assert updated >= 2 * JOBS
    assert in_place >= 0.9 * updated
