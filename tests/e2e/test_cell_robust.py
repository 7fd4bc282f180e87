"""A cell does what operators order, and takes orders again whatever the broker does, by itself.

The cell only pretends to run containers. It is at the end of a cable, on which old connections can
be stranded while new ones pass: what a firewall does that forgets a connection.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
import redis

from cellrun import Session
from tests.conformance.cable import Cable
from tests.e2e.stack import Companion, RunningStack, open_folder, remnants, through, wait_until
from tests.e2e.test_lost_cell import enroll, running_on, state_of
from tests.e2e.work import session_of, wait_for_end

pytestmark = pytest.mark.stack

OWN = "far-away"
BEGINS_ANEW = "process_restarting"
# Longer than it takes to notice a dead connection, and a consumer that takes nothing.
SHORT = {
    "CELLRUN_HEARTBEAT_SECONDS": "1",
    "CELLRUN_LEASE_SECONDS": "30",
    "CELLRUN_CONVERGENCE_INTERVAL_SECONDS": "1",
}


class ForgetfulCable(Cable):
    """`strand`: connections of before stay open, and nothing passes them any more."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._stranded: set[socket.socket] = set()
        self._released = threading.Event()
        super().__init__(("127.0.0.1", 0), target)

    def strand(self) -> int:
        """Forget all connections; how many."""
        with self._lock:
            self._stranded |= set(self._ends)
            return len(self._stranded)

    def close(self) -> None:
        """Cut, for good."""
        self._released.set()
        super().close()

    def _copy(
        self, source: socket.socket, sink: socket.socket, wait: Callable[[int], None]
    ) -> None:
        def hold_back(size: int) -> None:
            if source in self._stranded:
                self._released.wait()
            wait(size)

        super()._copy(source, sink, hold_back)


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    with open_folder() as folder:
        with RunningStack(folder / "home", cells=0, engine="none", **SHORT) as running:
            yield running
        assert remnants(running.home) == []


@pytest.fixture(scope="module")
def session(stack: RunningStack) -> Iterator[Session]:
    with session_of(stack, operator=True) as session:
        yield session


@pytest.fixture(scope="module")
def cable(stack: RunningStack) -> Iterator[ForgetfulCable]:
    broker = urlsplit(stack.environment["CELERY_BROKER_URL"])
    assert broker.port is not None
    cable = ForgetfulCable(("127.0.0.1", broker.port))
    yield cable
    cable.close()


@pytest.fixture(scope="module")
def cell(stack: RunningStack, session: Session, cable: ForgetfulCable) -> Iterator[Companion]:
    folder = stack.home / "own"
    folder.mkdir()
    (folder / "key").write_text(enroll(stack, OWN))
    environment = {
        "PATH": os.environ["PATH"],
        "CELLRUN_CELL_NAME": OWN,
        "CELLRUN_CELL_HOME": str(folder),
        "CELLRUN_CELL_KEY_FILE": str(folder / "key"),
        "CELLRUN_CELL_DRIVER": "memory",
        "CELLRUN_CELL_CAPACITY": "cpu=4,memory=4Gi,disk=10Gi",
        "CELERY_BROKER_URL": through(stack, cable.port),
        "CELLRUN_CONTROL_URL": stack.environment["CELLRUN_URL"],
        "CELLRUN_INSTALLATION": stack.installation,
    }
    with Companion([sys.executable, "-m", "workers"], environment, folder / "log") as cell:
        wait_until(lambda: state_of(session, OWN) == "READY", seconds=60, what="it is ready")
        yield cell


@pytest.fixture
def broker(stack: RunningStack) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(stack.environment["CELERY_BROKER_URL"]) as client:
        yield client


def run_a_job(session: Session) -> None:
    job = {"name": "order", "image": "x", "command": ["noop"], "resources": {"cpu": 0.1}}
    assert wait_for_end(session, session.submit(job)["id"], seconds=60)["state"] == "SUCCEEDED"


def test_remote_control_has_no_effect_on_a_cell(
    stack: RunningStack, session: Session, cell: Companion
) -> None:
    queue = f"cell.{OWN}.{session.cell(OWN)['incarnation']}"  # type: ignore[typeddict-item]
    for command in (["cancel_consumer", queue], ["shutdown"]):
        # In an environment of its own: Celery believes the one of the tests more than its
        # arguments.
        done = subprocess.run(
            [sys.executable, "-m", "celery", "control", "--timeout", "2", *command],
            env={
                "PATH": os.environ["PATH"],
                "CELERY_BROKER_URL": stack.environment["CELERY_BROKER_URL"],
            },
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert "No nodes replied" in done.stderr
    run_a_job(session)
    assert cell.exit_code is None
    assert state_of(session, OWN) == "READY"


def strand(stack: RunningStack, cable: ForgetfulCable, broker: redis.Redis) -> None:
    assert cable.strand() > 0


def kill_connections(stack: RunningStack, cable: ForgetfulCable, broker: redis.Redis) -> None:
    assert broker.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") > 0


def pause(stack: RunningStack, cable: ForgetfulCable, broker: redis.Redis) -> None:
    broker.execute_command("CLIENT", "PAUSE", "7000", "ALL")


def freeze(stack: RunningStack, cable: ForgetfulCable, broker: redis.Redis) -> None:
    pid = stack.pid_of("redis")
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(7.0, os.kill, (pid, signal.SIGCONT)).start()


@pytest.mark.parametrize("harm", [strand, kill_connections, pause, freeze])
def test_cell_consumes_orders_again_after_connection_trouble(
    stack: RunningStack,
    session: Session,
    cell: Companion,
    cable: ForgetfulCable,
    broker: redis.Redis,
    harm: Callable[[RunningStack, ForgetfulCable, redis.Redis], None],
) -> None:
    run_a_job(session)
    begun = cell.log.read_text().count(BEGINS_ANEW)
    harm(stack, cable, broker)
    run_a_job(session)
    # Not by dying, nor by beginning anew.
    assert cell.exit_code is None
    assert cell.log.read_text().count(BEGINS_ANEW) == begun


def test_drained_cell_evicts_its_work_and_stays_drained_after_a_restart(
    session: Session, cell: Companion
) -> None:
    job = {"name": "long", "image": "x", "command": ["sleep", "600"], "resources": {"cpu": 0.1}}
    job_id = session.submit(job)["id"]
    wait_until(lambda: running_on(session, job_id, OWN) == 1, seconds=60, what="it runs")
    session.drain(OWN, deadline_seconds=0)
    [task] = session.tasks(job_id)
    wait_until(
        lambda: session.attempts(task["id"])[0]["release_kind"] == "confirmed",  # type: ignore[typeddict-item]
        seconds=120,  # after an outage convergence first listens for a lease
        what="it has left",
    )
    [first] = session.attempts(task["id"])
    assert first["state"] == "PREEMPTED"
    cell.end(signal.SIGKILL)
    with cell:
        before = session.cell(OWN)["last_seen_at"]
        wait_until(
            lambda: session.cell(OWN)["last_seen_at"] != before, seconds=60, what="it beats again"
        )
        assert state_of(session, OWN) == "DRAINING"
        session.uncordon(OWN)
        wait_until(lambda: running_on(session, job_id, OWN) == 1, seconds=60, what="it is back")
        [task] = session.tasks(job_id)
        assert task["preemption_count"] == 0  # type: ignore[typeddict-item]
        session.cancel_job(job_id, reason="", force=True)
        assert wait_for_end(session, job_id)["state"] == "KILLED"
        shown = session.cell(OWN)["clock_ahead_seconds"]
        assert shown is not None
        assert abs(shown) < 5.0
