"""A fleet of cells is killed for good while tasks run: seen in time, its tasks end elsewhere, once.

At a lease of 3 s. What is asserted of time is what an installation promises: a cell is LOST a
quarter of a lease and ten seconds after its lease at the latest. In `benchmarks.killed_fleet` the
same is measured with 100 cells and 2,000 tasks at the lease that is shipped.
"""

from collections.abc import Iterator

import pytest

from benchmarks import killed_fleet
from benchmarks.stand import Stand, Wanted, standing
from controlplane.domain.convergence.policy import Policy
from tests.e2e.stack import check_invariants, remnants

LEASE_SECONDS = 3
SHORT = {
    "CELLRUN_HEARTBEAT_SECONDS": "1",
    "CELLRUN_LEASE_SECONDS": str(LEASE_SECONDS),
    "CELLRUN_CONVERGENCE_INTERVAL_SECONDS": "1",
}
WANTED = Wanted(
    cells=20,
    fleets=5,
    database_options=killed_fleet.DATABASE_OPTIONS,
    settings=SHORT,
)
FLEETS = [*WANTED.fleet_cells().items()]
TASKS = 400
TASK_SECONDS = 6.0

Connection = killed_fleet.Connection


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    with standing(WANTED) as found:
        yield found
        check_invariants(found.plan.control_environment("command"))
    assert remnants(found.plan.home.root.parent) == []


@pytest.fixture
def connection(stand: Stand) -> Iterator[Connection]:
    with stand.connect() as connection:
        yield connection


def test_killed_cells_are_lost_in_time_and_their_tasks_end_elsewhere_once(
    stand: Stand, connection: Connection
) -> None:
    fleet, cells = FLEETS[0]
    killed_fleet.wait_until_judging(stand, connection)
    job_id = killed_fleet.start_sleepers(stand, connection, TASKS, TASK_SECONDS)
    held = count_held(connection, job_id, cells)
    killed_at = killed_fleet.kill(stand, connection, fleet)
    outcome = killed_fleet.follow(stand, connection, job_id, cells, killed_at)
    assert max(outcome.lost.values()) <= killed_fleet.limit_seconds(Policy(lease=LEASE_SECONDS))
    assert len(outcome.rerun) == held > 0
    assert min(outcome.rerun) >= min(outcome.lost.values())
    killed_fleet.check_counted_once(connection, job_id, TASKS, cells)


def test_killed_cells_are_lost_despite_killed_control_plane_processes(
    stand: Stand, connection: Connection
) -> None:
    fleet, cells = FLEETS[1]
    job_id = killed_fleet.start_sleepers(stand, connection, TASKS, TASK_SECONDS)
    held = count_held(connection, job_id, cells)
    killed_at = killed_fleet.kill(stand, connection, fleet)
    for name in ("inbox", "convergence", "placement"):
        stand.kill(name)
        stand.start_again(name)
    outcome = killed_fleet.follow(stand, connection, job_id, cells, killed_at)
    assert len(outcome.rerun) == held > 0
    killed_fleet.check_counted_once(connection, job_id, TASKS, cells)


def count_held(connection: Connection, job_id: int, cells: list[str]) -> int:
    """How many tasks of the job run on those cells."""
    statement = """
        SELECT count(*) FROM controlplane_attempt a JOIN controlplane_cell c ON c.id = a.cell_id
        WHERE a.job_id = %s AND a.released_at IS NULL AND c.name = ANY(%s)
        """
    [(count,)] = connection.execute(statement, [job_id, cells])
    return int(count)
