"""A cell is killed and never returns: its tasks run elsewhere, paid from their preemption budget.

The stack supervises one cell; the other is ours and is not started again. Leases are short.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from cellrun import Session
from cellrun.documents import Attempt
from tests.architecture.source import ROOT
from tests.e2e.engine import EngineEvents, containers_of, remove_containers
from tests.e2e.stack import Companion, RunningStack, open_folder, remnants, wait_until
from tests.e2e.work import attempts_of, session_of, sleepers, wait_for_end, whole_log

pytestmark = [pytest.mark.stack, pytest.mark.engine]

SHORT = {
    "CELLRUN_HEARTBEAT_SECONDS": "1",
    "CELLRUN_LEASE_SECONDS": "5",
    "CELLRUN_CONVERGENCE_INTERVAL_SECONDS": "1",
}
OWN = "unattended"


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    with open_folder() as folder:
        with RunningStack(folder / "home", cells=1, **SHORT) as running:
            yield running
        remove_containers(running.installation)
        assert remnants(running.home) == []


@pytest.fixture(scope="module")
def session(stack: RunningStack) -> Iterator[Session]:
    with session_of(stack, operator=True) as session:
        yield session


@pytest.fixture(scope="module")
def own_cell(stack: RunningStack) -> Companion:
    """A second cell beside the stack's, started and ended by the tests."""
    folder = stack.home / "own"
    folder.mkdir(exist_ok=True)
    (folder / "key").write_text(enroll(stack, OWN))
    environment = stack.environment_of("cell-1") | {
        "CELLRUN_CELL_NAME": OWN,
        "CELLRUN_CELL_HOME": str(folder),
        "CELLRUN_CELL_KEY_FILE": str(folder / "key"),
    }
    return Companion([sys.executable, "-m", "workers"], environment, folder / "log")


def enroll(stack: RunningStack, name: str) -> str:
    """The key of a new cell, as an operator gets it."""
    return subprocess.run(
        [sys.executable, "manage.py", "enroll_cell", name],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "CELLRUN_HOME": str(stack.home)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def state_of(session: Session, name: str) -> str:
    """The state of a cell."""
    return session.cell(name)["state"]


def lost_attempts(session: Session, job_id: int) -> list[tuple[Attempt, Attempt]]:
    """First and second attempt of every task of the job that needed two."""
    return [
        (attempts[0], attempts[1])
        for attempts in attempts_of(session, job_id).values()
        if len(attempts) == 2
    ]


def test_tasks_of_a_lost_cell_run_elsewhere_and_the_cell_returns_clean(
    stack: RunningStack, session: Session, own_cell: Companion
) -> None:
    with EngineEvents(stack.installation) as events, own_cell:
        wait_until(lambda: state_of(session, OWN) == "READY", seconds=60, what="it is ready")
        job_id = session.submit(sleepers(8, 4, name="moving"))["id"]
        wait_until(lambda: running_on(session, job_id, OWN) >= 2, seconds=60, what="work on it")
        own_cell.end(signal.SIGKILL)
        job = wait_for_end(session, job_id)
        assert job["state"] == "SUCCEEDED"
        assert state_of(session, OWN) == "LOST"
        moved = lost_attempts(session, job_id)
        assert len(moved) >= 2
        check_moved(session, moved)
        counts = [task["preemption_count"] for task in session.tasks(job_id)]  # type: ignore[typeddict-item]
        assert sorted(counts) == [0] * (8 - len(moved)) + [1] * len(moved)
        assert max(events.starts_by_task(job_id).values()) == 2
        for task in session.tasks(job_id):
            assert whole_log(session, str(task["attempt_uid"])) == "begun\ndone\n"

    with own_cell:
        wait_until(lambda: state_of(session, OWN) == "READY", seconds=60, what="it is back")
        wait_until(
            lambda: not [row for row in containers_of(stack.installation) if is_of(row, OWN)],
            seconds=60,
            what="nothing is left of the lost ones",
        )


def running_on(session: Session, job_id: int, cell: str) -> int:
    """How many tasks of a job run on a cell."""
    tasks = session.tasks(job_id)
    return sum(task["state"] == "RUNNING" and task["cell_id"] == cell for task in tasks)


def is_of(row: dict[str, dict[str, str]], cell: str) -> bool:
    """Whether the engine's row is a container of that cell."""
    return row["Labels"].get("cellrun.cell") == cell


def check_moved(session: Session, moved: list[tuple[Attempt, Attempt]]) -> None:
    """The first attempt was lost with its cell, the second succeeded on the other."""
    for first, second in moved:
        assert (first["cell_id"], first["state"]) == (OWN, "WORKER_FAILED")
        assert first["release_kind"] == "cell_lost"  # type: ignore[typeddict-item]
        assert (second["cell_id"], second["state"]) == ("cell-1", "SUCCEEDED")
        assert second["release_kind"] == "confirmed"  # type: ignore[typeddict-item]
