"""Most of a pool's cells fall silent at once; and how people and cells end what runs: real ones.

Four cells of ours with the process driver, at a short lease: frozen, killed, stopped, drained.
Tasks run until the test lets them go, and write down each time that they begin.
"""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cellrun import Session
from cellrun.documents import Attempt, Task
from tests.e2e.stack import Companion, RunningStack, open_folder, remnants, wait_until
from tests.e2e.test_lost_cell import enroll
from tests.e2e.work import session_of, wait_for_end

NAMES = ("north", "east", "south", "west")
MOST = NAMES[:3]
SHORT = {
    "CELLRUN_HEARTBEAT_SECONDS": "1",
    "CELLRUN_LEASE_SECONDS": "4",
    "CELLRUN_CONVERGENCE_INTERVAL_SECONDS": "1",
}
LONG = 45


class Cells:
    """The four cells, each a process of its own."""

    def __init__(self, stack: RunningStack) -> None:
        self._folder = stack.home / "own"
        self._folder.mkdir()
        self._own = {name: self._cell(stack, name) for name in NAMES}

    def _cell(self, stack: RunningStack, name: str) -> Companion:
        home = self._folder / name
        home.mkdir()
        (home / "key").write_text(enroll(stack, name))
        environment = {
            "PATH": os.environ["PATH"],
            "CELLRUN_CELL_NAME": name,
            "CELLRUN_CELL_HOME": str(home),
            "CELLRUN_CELL_KEY_FILE": str(home / "key"),
            "CELLRUN_CELL_DRIVER": "process",
            "CELLRUN_CELL_CAPACITY": "cpu=4,memory=4Gi,disk=1Gi",
            "CELERY_BROKER_URL": stack.environment["CELERY_BROKER_URL"],
            "CELLRUN_CONTROL_URL": stack.environment["CELLRUN_URL"],
            "CELLRUN_INSTALLATION": stack.installation,
        }
        return Companion([sys.executable, "-m", "workers"], environment, home / "log")

    def start(self, *names: str) -> None:
        """Start those that do not run."""
        for name in names:
            if not self._runs(name):
                self._own[name].__enter__()

    def _runs(self, name: str) -> bool:
        cell = self._own[name]
        return cell._process is not None and cell.exit_code is None

    def signal(self, number: int, *names: str) -> None:
        """Send a signal to their processes at once."""
        for name in names:
            process = self._own[name]._process
            assert process is not None
            process.send_signal(number)

    def end(self, number: int, *names: str) -> None:
        """Send a signal and return when they have gone."""
        for name in names:
            if self._runs(name):
                self.signal(number, name)
        for name in names:
            if self._runs(name):
                self._own[name].end(number)


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    with open_folder() as folder:
        with RunningStack(folder / "home", cells=0, engine="none", **SHORT) as running:
            yield running
        wait_until(lambda: remnants(running.home) == [], seconds=30, what="no process is left")


@pytest.fixture(scope="module")
def session(stack: RunningStack) -> Iterator[Session]:
    with session_of(stack, operator=True) as session:
        yield session


@pytest.fixture(scope="module")
def all_cells(stack: RunningStack) -> Iterator[Cells]:
    cells = Cells(stack)
    try:
        yield cells
    finally:
        cells.end(signal.SIGTERM, *NAMES)


@pytest.fixture
def cells(all_cells: Cells, session: Session) -> Cells:
    """All four run, and are READY."""
    all_cells.start(*NAMES)
    wait_until(
        lambda: states(session) == ["READY"] * 4 and not is_held(session),
        seconds=LONG,
        what="all are ready",
    )
    return all_cells


@pytest.fixture
def place(stack: RunningStack) -> Iterator[Path]:
    """The folder where tasks write that they begin, and check whether they may end."""
    folder = stack.home / f"place-{len(list(stack.home.glob('place-*')))}"
    folder.mkdir()
    yield folder
    (folder / "go").touch()


def job_of(place: Path, replicas: int, *, trap: str = "", **fields: Any) -> dict[str, Any]:
    """Tasks that run until they may go."""
    script = f"{trap} echo $$ >> {place}/begun; while ! [ -e {place}/go ]; do sleep 0.1; done"
    return {
        "name": "lasting",
        "task_type": "process",
        "command": ["/bin/sh", "-c", script],
        "resources": {"cpu": 0.1, "memory": "64Mi"},
        "replicas": replicas,
        **fields,
    }


def begin(session: Session, place: Path, replicas: int, **fields: Any) -> int:
    """A job whose tasks all run."""
    job_id = session.submit(job_of(place, replicas, **fields))["id"]
    wait_until(
        lambda: begun(place) == replicas and running(session, job_id) == replicas,
        seconds=LONG,
        what="all its tasks run",
    )
    return job_id


def states(session: Session) -> list[str]:
    return [session.cell(name)["state"] for name in NAMES]


def begun(place: Path) -> int:
    """How many processes of tasks ever began."""
    file = place / "begun"
    return len(file.read_text().split()) if file.exists() else 0


def is_living(place: Path) -> bool:
    """Whether a process of a task is there."""
    return any(Path(f"/proc/{pid}").exists() for pid in (place / "begun").read_text().split())


def running(session: Session, job_id: int) -> int:
    return sum(task["state"] == "RUNNING" for task in session.tasks(job_id))


def one(session: Session, job_id: int) -> Task:
    [task] = session.tasks(job_id)
    return task


def last(session: Session, job_id: int) -> Attempt:
    """The newest attempt of the job's one task."""
    return session.attempts(one(session, job_id)["id"])[-1]


def is_released(session: Session, job_id: int) -> bool:
    return last(session, job_id)["released_at"] is not None


def is_held(session: Session) -> bool:
    return session.pool("default")["loss_held_at"] is not None


def open_alerts(stack: RunningStack) -> list[tuple[str, str]]:
    """Those about cells and pools."""
    with psycopg.connect(stack.environment["DATABASE_URL"]) as connection:
        return connection.execute(
            "SELECT kind, subject FROM controlplane_alert WHERE cleared_at IS NULL"
            " AND kind IN ('mass_loss', 'cell_lost', 'cell_twin', 'stop_unconfirmed')"
            " ORDER BY kind, subject"
        ).fetchall()


def convergences(stack: RunningStack, cell: str) -> float:
    """For how long, by the database's clock, the cell was silent at the latest tick."""
    with psycopg.connect(stack.environment["DATABASE_URL"]) as connection:
        [found] = connection.execute(
            "SELECT extract(epoch FROM t.finished_at - l.last_message_at)"
            " FROM controlplane_celllease l JOIN controlplane_cell c ON c.id = l.cell_id,"
            " controlplane_tickstate t WHERE c.name = %s AND t.name = 'convergence'",
            [cell],
        ).fetchall()
    return float(found[0])


def test_frozen_cells_are_not_lost_and_resume_without_retries(
    stack: RunningStack, session: Session, cells: Cells, place: Path
) -> None:
    job_id = begin(session, place, 4)
    assert {task["cell_id"] for task in session.tasks(job_id)} == set(NAMES)
    cells.signal(signal.SIGSTOP, *MOST)
    try:
        wait_until(lambda: is_held(session), seconds=LONG, what="it is held back")
        assert open_alerts(stack) == [("mass_loss", "default")]
        wait_until(lambda: convergences(stack, "north") > 15, seconds=LONG, what="three leases")
        assert states(session) == ["READY"] * 4
        assert [task["state"] for task in session.tasks(job_id)] == ["RUNNING"] * 4
    finally:
        cells.signal(signal.SIGCONT, *MOST)
    wait_until(lambda: not is_held(session), seconds=LONG, what="it is over")
    (place / "go").touch()
    assert wait_for_end(session, job_id)["state"] == "SUCCEEDED"
    assert (begun(place), open_alerts(stack)) == (4, [])
    assert [task["attempt_number"] for task in session.tasks(job_id)] == [1] * 4


def test_an_operator_releases_an_attempt_whose_cell_is_silent(
    session: Session, cells: Cells, place: Path
) -> None:
    session.cordon("west")
    job_id = begin(session, place, 1)
    session.uncordon("west")
    cells.signal(signal.SIGSTOP, *MOST)
    try:
        wait_until(lambda: is_held(session), seconds=LONG, what="it is held back")
        session.cancel_job(job_id, reason="it is unknown when they return")
        assert wait_for_end(session, job_id)["state"] == "KILLED"
        assert session.job(job_id)["settled_at"] is None
        released = session.release_attempt(str(last(session, job_id)["uid"]), reason="seen to")
        assert released["release_kind"] == "operator"
        assert session.job(job_id)["settled_at"] is not None
        assert is_living(place)
    finally:
        cells.signal(signal.SIGCONT, *MOST)
    # The control plane stops what it must not have.
    wait_until(lambda: not is_living(place), seconds=LONG, what="its process is gone")
    wait_until(lambda: states(session) == ["READY"] * 4, seconds=LONG, what="all are ready")


def test_killed_cells_are_lost_after_an_operator_confirms_the_loss(
    stack: RunningStack, session: Session, cells: Cells, place: Path
) -> None:
    job_id = begin(session, place, 4)
    cells.end(signal.SIGKILL, *MOST)
    wait_until(lambda: is_held(session), seconds=LONG, what="it is held back")
    assert [task["state"] for task in session.tasks(job_id)] == ["RUNNING"] * 4
    session.confirm_loss("default")
    wait_until(
        lambda: (
            [task["cell_id"] for task in session.tasks(job_id) if task["state"] == "RUNNING"]
            == ["west"] * 4
        ),
        seconds=LONG,
        what="all run on the one that is left",
    )
    assert states(session) == ["LOST", "LOST", "LOST", "READY"]
    assert open_alerts(stack) == [("cell_lost", name) for name in sorted(MOST)]
    assert sorted(task["attempt_number"] for task in session.tasks(job_id)) == [1, 2, 2, 2]
    cells.start(*MOST)
    wait_until(lambda: states(session) == ["READY"] * 4, seconds=LONG, what="they are back")
    (place / "go").touch()
    assert wait_for_end(session, job_id)["state"] == "SUCCEEDED"
    assert (begun(place), open_alerts(stack)) == (7, [])


def test_cell_restart_after_a_goodbye_retries_nothing(
    stack: RunningStack, session: Session, cells: Cells, place: Path
) -> None:
    job_id = begin(session, place, 4)
    cells.end(signal.SIGTERM, "north")
    wait_until(lambda: convergences(stack, "north") > 8, seconds=LONG, what="its lease is over")
    assert states(session) == ["READY"] * 4
    cells.start("north")
    wait_until(lambda: convergences(stack, "north") < 3, seconds=LONG, what="it is followed")
    (place / "go").touch()
    assert wait_for_end(session, job_id)["state"] == "SUCCEEDED"
    assert (begun(place), open_alerts(stack)) == (4, [])
    assert [task["attempt_number"] for task in session.tasks(job_id)] == [1] * 4


def test_drained_cell_empties_by_completion_or_by_eviction_at_its_deadline(
    session: Session, cells: Cells, place: Path
) -> None:
    first = begin(session, place, 1)
    home = str(one(session, first)["cell_id"])
    session.drain(home, deadline_seconds=None)
    (place / "go").touch()
    assert wait_for_end(session, first)["state"] == "SUCCEEDED"
    assert [item["cell_id"] for item in session.attempts(one(session, first)["id"])] == [home]
    (place / "go").unlink()
    (place / "begun").unlink()
    second = begin(session, place, 1, name="evicted")
    other = str(one(session, second)["cell_id"])
    assert other != home
    session.drain(other, deadline_seconds=1)
    wait_until(lambda: begun(place) == 2, seconds=LONG, what="it begins elsewhere")
    before, after = session.attempts(one(session, second)["id"])
    assert (before["state"], before["release_kind"]) == ("PREEMPTED", "confirmed")
    assert after["cell_id"] not in (home, other)
    assert one(session, second)["preemption_count"] == 0  # type: ignore[typeddict-item]
    (place / "go").touch()
    assert wait_for_end(session, second)["state"] == "SUCCEEDED"
    for name in (home, other):
        session.uncordon(name)


@pytest.mark.parametrize("force", [True, False])
def test_attempt_ignoring_the_stop_ends_by_force_or_after_the_grace_period(
    session: Session, cells: Cells, place: Path, force: bool
) -> None:
    grace = 600 if force else 2
    job_id = begin(session, place, 1, trap="trap '' TERM;", stop_grace_seconds=grace)
    session.cancel_job(job_id, reason="enough", force=force)
    wait_until(lambda: is_released(session, job_id), seconds=LONG, what="it is confirmed")
    assert not is_living(place)
    found = last(session, job_id)
    assert (found["state"], found["release_kind"]) == ("KILLED", "confirmed")
