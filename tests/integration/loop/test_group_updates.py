"""Counts of groups change without new entries in the indexes of their table."""

from dataclasses import dataclass

from controlplane.contract.states import TaskState as S
from controlplane.queries.sql import first_row, scalar
from tests.integration.loop.conftest import Loop

JOBS = 30


@dataclass(frozen=True, slots=True)
class Updates:
    """How many rows of groups were updated, and how many of them in and outside their pages."""

    updated: int
    in_place: int
    elsewhere: int


def count_updates() -> Updates:
    """Return the counts of this database until now."""
    scalar("SELECT pg_stat_force_next_flush()")
    row = first_row(
        """
        SELECT pg_stat_get_tuples_updated(t) + pg_stat_get_xact_tuples_updated(t) AS updated,
               pg_stat_get_tuples_hot_updated(t)
                   + pg_stat_get_xact_tuples_hot_updated(t) AS in_place,
               pg_stat_get_tuples_newpage_updated(t)
                   + pg_stat_get_xact_tuples_newpage_updated(t) AS elsewhere
        FROM CAST('controlplane_taskgroup' AS regclass) AS t
        """
    )
    assert row is not None
    return Updates(*row)


def test_groups_of_short_jobs_are_updated_in_place(loop: Loop) -> None:
    cell = loop.cell()
    before = count_updates()
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
    after = count_updates()
    updated = after.updated - before.updated
    elsewhere = after.elsewhere - before.elsewhere
    # Placement and the end of each group's task.
    assert updated >= 2 * JOBS
    # No update changes an indexed column. A page has space for one new version of each of its
    # groups; a concurrent transaction, as that of autovacuum, prevents the reuse of this space.
    assert after.in_place - before.in_place == updated - elsewhere
    assert elsewhere <= 0.55 * updated
