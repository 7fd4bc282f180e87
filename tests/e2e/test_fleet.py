"""A fleet: one process, many cells in full, and a job that they run to its end."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.stand import FLEET, Stand, Wanted, standing
from benchmarks.throughput import submit_and_wait
from tests.architecture.source import ROOT
from tests.e2e.stack import check_invariants, remnants

pytestmark = pytest.mark.stack

CELLS = 20
TASKS = 400


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    with standing(Wanted(cells=CELLS)) as found:
        yield found
        check_invariants(found.plan.control_environment("command"))
    assert remnants(found.plan.home.root.parent) == []


def test_fleet_runs_a_job_end_to_end_and_sends_goodbyes(stand: Stand) -> None:
    with stand.connect() as connection:
        submit_and_wait(stand, connection, [TASKS])

        def attempts_by_cell() -> list[tuple[int, int]]:
            # Dispersed over all cells alike; each attempt ended well, and is known to be gone.
            statement = """
                SELECT count(*), sum(n)::int FROM (
                    SELECT count(*) AS n FROM controlplane_attempt
                    WHERE state = 4 AND number = 1 AND release_kind = 'confirmed'
                    GROUP BY cell_id HAVING count(*) = %s) AS of_a_cell
                """
            return [*connection.execute(statement, [TASKS // CELLS])]

        assert attempts_by_cell() == [(CELLS, TASKS)]
        silent = "SELECT count(*) FROM controlplane_celllease WHERE last_message_at > %s"
        ((before,),) = connection.execute("SELECT clock_timestamp()")
        assert stand.stop(FLEET) == 0

        def all_sent_goodbyes() -> bool:
            return [*connection.execute(silent, [before])] == [(CELLS,)]

        stand.wait_until(all_sent_goodbyes, "every cell sent its goodbye", seconds=30)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({}, "CELLRUN_FLEET_SIZE: a whole number from 1 to 2000 is expected, not ''"),
        ({"CELLRUN_FLEET_SIZE": "many"}, "not 'many'"),
        ({"CELLRUN_FLEET_SIZE": "2"}, "CELLRUN_FLEET_KEYS is not set"),
        (
            {
                "CELLRUN_FLEET_SIZE": "2",
                "CELLRUN_FLEET_KEYS": "/nowhere",
                "CELLRUN_CELL_DRIVER": "docker",
            },
            "CELLRUN_CELL_DRIVER: a fleet supports only the driver memory",
        ),
        (
            {"CELLRUN_FLEET_SIZE": "2", "CELLRUN_FLEET_KEYS": "/nowhere"},
            "CELLRUN_CELL_KEY_FILE",
        ),
    ],
)
def test_wrong_settings_are_refused_by_name(
    tmp_path: Path, settings: dict[str, str], complaint: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "workers.fleet"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert complaint in done.stderr
    assert list(tmp_path.iterdir()) == []
