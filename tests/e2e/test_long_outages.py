"""Outages many leases long, of real processes: no cell is lost, nothing fails or is run again.

Two hundred processes run on four cells. Half of them end while the outage lasts, half after it.
"""

import os
import signal
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cellrun import Session
from cellrun.documents import Attempt
from tests.e2e.stack import RunningStack, is_running, open_folder, remnants, wait_until
from tests.e2e.work import attempts_of, count_states, session_of, wait_for_end, whole_log

# Leases of 3 s are judged in real time, so few other tests may run beside these.
pytestmark = pytest.mark.stack

CELLS, TASKS, EXCLUSIVE_TASKS = 4, 200, 4
ROOMY = {"CELLRUN_CELL_CAPACITY": "cpu=64,memory=64Gi,disk=64Gi,gpu=0"}
SHORT = {
    "CELLRUN_HEARTBEAT_SECONDS": "0.5",
    "CELLRUN_LEASE_SECONDS": "3",
    "CELLRUN_CONVERGENCE_INTERVAL_SECONDS": "1",
}
# These keep running: cells, the database, and the supervisors that restart processes.
LEFT_ALONE = ("cell-", "postgres", "redis", "supervisord", "stack")
KEEPERS = ("stack", "supervisord")


@dataclass(frozen=True, slots=True)
class Gate:
    """What tasks wait at, without doing anything, until it is opened."""

    path: Path

    def open(self) -> None:
        """Let the waiting tasks continue, and later ones."""
        held, empty = self.path.with_suffix(".held"), self.path.with_suffix(".empty")
        os.link(self.path, held)
        empty.touch()
        empty.replace(self.path)
        with suppress(OSError):  # no task waits
            os.close(os.open(held, os.O_WRONLY | os.O_NONBLOCK))

    @property
    def is_open(self) -> bool:
        """Return whether no task waits any more."""
        return not stat.S_ISFIFO(self.path.stat().st_mode)


@contextmanager
def gate() -> Iterator[Gate]:
    with open_folder() as folder:
        path = folder / "gate"
        os.mkfifo(path)
        path.chmod(0o666)
        made = Gate(path)
        yield made
        if not made.is_open:
            made.open()


def waiting_job(name: str, at: Gate, replicas: int, **fields: Any) -> dict[str, Any]:
    """Processes that wait at a gate, and are done once it is open."""
    # A running attempt has the lock of its task: were there two of one, the second would fail.
    lock = f"exec 9>>{at.path}.$CELLRUN_TASK_ID; flock -n 9 || exit 9"
    script = f"{lock}; echo begun; read line < {at.path}; echo done"
    resources = {"cpu": 0.01, "memory": "16Mi", "disk": "1Mi"}
    command = ["sh", "-c", script]
    return {
        "name": name,
        "task_type": "process",
        "command": command,
        "replicas": replicas,
        "resources": resources,
        **fields,
    }


@contextmanager
def away(stack: RunningStack, names: list[str]) -> Iterator[None]:
    """Kill the processes; none of them is started again before the block is left."""
    for keeper in KEEPERS:
        os.kill(stack.pid_of(keeper), signal.SIGSTOP)
    killed = {name: stack.kill(name) for name in names}
    try:
        yield
    finally:
        for keeper in reversed(KEEPERS):
            os.kill(stack.pid_of(keeper), signal.SIGCONT)
    for name, pid in killed.items():
        wait_until(
            lambda name=name, pid=pid: (  # type: ignore[misc]
                stack.pid_of(name) != pid and is_running(stack.pid_of(name))
            ),
            seconds=60,
            what=f"{name} runs again",
        )


def let_pass(seconds: float) -> None:
    """Return when an outage has lasted so long: that is what it is about."""
    ends = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= ends, seconds=seconds + 60, what="time passes")


def control_plane(stack: RunningStack) -> list[str]:
    """All of it, web and what is there for eyes as well."""
    return [name for name in stack.processes() if not name.startswith(LEFT_ALONE)]


def go_through(stack: RunningStack, names: list[str], seconds: float) -> None:
    """Keep the processes away for so long while the tasks run, and check what becomes of them.

    The tasks of the job `exclusive` are ended by their guards, and run again, never two of one.
    """
    cells = {name: stack.pid_of(name) for name in stack.processes() if name.startswith("cell-")}
    with gate() as meanwhile, gate() as afterwards, session_of(stack) as session:
        jobs = [
            waiting_job("meanwhile", meanwhile, TASKS // 2),
            waiting_job("afterwards", afterwards, TASKS // 2),
            waiting_job("exclusive", afterwards, EXCLUSIVE_TASKS, exclusive=True),
        ]
        job_ids = [session.submit(job)["id"] for job in jobs]
        for job_id, job in zip(job_ids, jobs, strict=True):
            wait_for_running(session, job_id, job["replicas"])
        with away(stack, names):
            let_pass(seconds / 2)
            meanwhile.open()
            let_pass(seconds / 2)
        wait_for_end(session, job_ids[0])
        afterwards.open()
        check_untouched(session, job_ids[:2])
        check_exclusive(session, job_ids[2])
    assert lost_cells(stack) == []
    assert {name: stack.pid_of(name) for name in cells} == cells


def wait_for_running(session: Session, job_id: int, replicas: int) -> None:
    wait_until(
        lambda: count_states(session.job(job_id)) == {"RUNNING": replicas},
        seconds=90,
        what=f"all tasks of job {job_id} run",
    )


def check_untouched(session: Session, job_ids: list[int]) -> None:
    """Every task succeeded at the first attempt, charged for nothing; cells send all logs."""
    for job_id in job_ids:
        assert wait_for_end(session, job_id)["state"] == "SUCCEEDED"
        for task in session.tasks(job_id):
            document: dict[str, Any] = {**task}
            assert (document["attempt_number"], document["preemption_count"]) == (1, 0)
            uid = str(task["attempt_uid"])
            wait_until(
                lambda uid=uid: whole_log(session, uid) == "begun\ndone\n",  # type: ignore[misc]
                seconds=120,
                what=f"the log of attempt {uid} is there",
            )


def check_exclusive(session: Session, job_id: int) -> None:
    """The lease ended each of them, at no program's cost; in the end all succeeded."""
    assert wait_for_end(session, job_id)["state"] == "SUCCEEDED"
    for attempts in attempts_of(session, job_id).values():
        *ended, last = attempts
        assert last["state"] == "SUCCEEDED"
        assert "lease_over" in {reason for one in ended for reason in reasons_of(session, one)}
        assert {one["state"] for one in ended} == {"WORKER_FAILED"}


def reasons_of(session: Session, attempt: Attempt) -> list[str]:
    return [str(change["reason"]) for change in session.history("attempts", attempt["uid"])]


def lost_cells(stack: RunningStack) -> list[str]:
    """The cells that were ever lost."""
    statement = "SELECT subject FROM controlplane_alert WHERE kind = 'cell_lost'"
    with psycopg.connect(stack.environment["DATABASE_URL"]) as connection:
        return [str(name) for (name,) in connection.execute(statement)]


@contextmanager
def standing(**settings: str) -> Iterator[RunningStack]:
    with open_folder() as folder:
        with RunningStack(folder / "home", cells=CELLS, engine="process", **settings) as running:
            yield running
        assert remnants(running.home) == []


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    """With short leases: an outage of ten of them is half a minute."""
    with standing(**ROOMY, **SHORT) as running:
        yield running


def test_control_plane_outage_of_fifteen_leases_loses_nothing(stack: RunningStack) -> None:
    go_through(stack, control_plane(stack), 45.0)


@pytest.mark.parametrize("name", ["inbox", "redis"])
def test_single_service_outage_of_ten_leases_loses_nothing(stack: RunningStack, name: str) -> None:
    go_through(stack, [name], 30.0)


@pytest.fixture(scope="module")
def installed_stack() -> Iterator[RunningStack]:
    """With the leases as installed."""
    with standing(**ROOMY) as running:
        yield running


@pytest.mark.soak
def test_control_plane_outage_of_ten_minutes_loses_nothing(installed_stack: RunningStack) -> None:
    go_through(installed_stack, control_plane(installed_stack), 600.0)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["inbox", "redis"])
def test_single_service_outage_of_five_minutes_loses_nothing(
    installed_stack: RunningStack, name: str
) -> None:
    go_through(installed_stack, [name], 300.0)
