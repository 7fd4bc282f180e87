"""An exclusive attempt never outlives its cell's lease after any kill; and nothing is left.

Leases are short. What is asserted of time is the order in which the engine saw things happen.
The stack supervises one cell; another is ours, at the end of a cable.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from cellrun import Session
from tests.conformance.cable import Cable
from tests.e2e.engine import EngineEvents, containers_of, remove_containers
from tests.e2e.stack import Companion, RunningStack, open_folder, remnants, through, wait_until
from tests.e2e.test_lost_cell import enroll, running_on, state_of
from tests.e2e.work import attempts_of, session_of, shell_job, wait_for_end

pytestmark = [pytest.mark.stack, pytest.mark.engine]

SHORT = {
    "CELLRUN_HEARTBEAT_SECONDS": "1",
    "CELLRUN_LEASE_SECONDS": "7",
    "CELLRUN_CONVERGENCE_INTERVAL_SECONDS": "1",
}
OWN = "unattended"
# The first attempt would never end; a later one ends at once.
FIRST_FOR_EVER = "trap 'exit 0' TERM; test $CELLRUN_ATTEMPT_NUMBER = 1 || exit 0; sleep 3600 & wait"
DEAF_AT_FIRST = "trap '' TERM; test $CELLRUN_ATTEMPT_NUMBER = 1 || exit 0; sleep 3600 & wait; wait"


def guards(home: Path) -> list[int]:
    """The guards of the cells in this folder and below."""
    mark = f"\0workers.guard\0{home}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (path / "cmdline").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


def exclusive_job(script: str, **fields: Any) -> dict[str, Any]:
    return shell_job(script, exclusive=True, **fields)


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
def cable(stack: RunningStack) -> Iterator[Cable]:
    broker = urlsplit(stack.environment["CELERY_BROKER_URL"])
    assert broker.port is not None
    cable = Cable(("127.0.0.1", 0), ("127.0.0.1", broker.port))
    yield cable
    cable.close()


@pytest.fixture
def own_cell(stack: RunningStack, session: Session, cable: Cable) -> Iterator[Companion]:
    folder = stack.home / "own"
    folder.mkdir(exist_ok=True)
    (folder / "key").write_text(enroll(stack, OWN))
    environment = stack.environment_of("cell-1") | {
        "CELLRUN_CELL_NAME": OWN,
        "CELLRUN_CELL_HOME": str(folder),
        "CELLRUN_CELL_KEY_FILE": str(folder / "key"),
        "CELERY_BROKER_URL": through(stack, cable.port),
    }
    cable.plug()
    with Companion([sys.executable, "-m", "workers"], environment, folder / "log") as cell:
        wait_until(lambda: state_of(session, OWN) == "READY", seconds=60, what="it is ready")
        yield cell


@contextmanager
def running_on_it(
    stack: RunningStack, session: Session, *scripts: str
) -> Iterator[tuple[list[int], EngineEvents]]:
    """Jobs with a task each, of which the first attempt runs on our cell."""
    order_cell(stack, "cell-1", "cordon")
    with EngineEvents(stack.installation) as events:
        job_ids = [session.submit(exclusive_job(script))["id"] for script in scripts]
        wait_until(
            lambda: all(running_on(session, job_id, OWN) == 1 for job_id in job_ids),
            seconds=60,
            what="they run there",
        )
        order_cell(stack, "cell-1", "uncordon")
        yield job_ids, events


def test_exclusive_attempts_of_a_killed_cell_end_before_the_next_start(
    stack: RunningStack, session: Session, own_cell: Companion
) -> None:
    # One that obeys the stop signal, and one that ignores it.
    with running_on_it(stack, session, FIRST_FOR_EVER, DEAF_AT_FIRST) as (job_ids, events):
        (guard,) = guards(stack.home / "own")
        own_cell.end(signal.SIGKILL)
        for job_id in job_ids:
            assert wait_for_end(session, job_id)["state"] == "SUCCEEDED"
            [(first, second)] = attempts_of(session, job_id).values()
            assert first["release_kind"] == "cell_lost"  # type: ignore[typeddict-item]
            assert ended_before(events, first["uid"], second["uid"])
        wait_until(
            lambda: guard not in guards(stack.home / "own"), seconds=30, what="the guard ends"
        )


def test_exclusive_attempt_of_a_disconnected_cell_ends_with_lease_over(
    stack: RunningStack, session: Session, own_cell: Companion, cable: Cable
) -> None:
    with running_on_it(stack, session, FIRST_FOR_EVER) as ([job_id], events):
        cable.pull()
        [[first]] = attempts_of(session, job_id).values()
        wait_until(lambda: first["uid"] in ended(events), seconds=30, what="the guard has ended it")
        cable.plug()
        assert wait_for_end(session, job_id)["state"] == "SUCCEEDED"
        [(first, second)] = attempts_of(session, job_id).values()
        assert first["state"] == "WORKER_FAILED"
        reasons = [change["reason"] for change in session.history("attempts", first["uid"])]
        assert "lease_over" in reasons
        assert first["release_kind"] == "confirmed"  # type: ignore[typeddict-item]
        [task] = session.tasks(job_id)
        assert task["preemption_count"] == 1  # type: ignore[typeddict-item]
        assert ended_before(events, first["uid"], second["uid"])


def test_connected_cell_keeps_its_exclusive_attempt_and_replaces_its_guard(
    stack: RunningStack, session: Session, own_cell: Companion
) -> None:
    script = "i=0; while [ $i -lt 105 ]; do sleep 0.1; i=$((i+1)); done"
    with running_on_it(stack, session, script) as ([job_id], _):
        (guard,) = guards(stack.home / "own")
        os.kill(guard, signal.SIGKILL)
        # One and a half leases long.
        assert wait_for_end(session, job_id)["state"] == "SUCCEEDED"
        [attempts] = attempts_of(session, job_id).values()
        assert len(attempts) == 1
        assert guards(stack.home / "own") not in ([], [guard])


def order_cell(stack: RunningStack, name: str, order: str) -> None:
    """As an operator."""
    token = stack.environment["CELLRUN_OPERATOR_TOKEN"]
    url = f"{stack.environment['CELLRUN_URL']}/api/v1/cells/{name}/{order}"
    requests.post(url, headers={"Authorization": f"Bearer {token}"}, timeout=30).raise_for_status()


def ended(events: EngineEvents) -> set[str]:
    """The attempts whose containers have ended."""
    return {attributes["cellrun.attempt"] for attributes in events.of_action("die")}


def ended_before(events: EngineEvents, first: str, second: str) -> bool:
    """Whether the engine saw the end of one attempt before the start of another."""
    line = [
        (action, attributes["cellrun.attempt"])
        for action, attributes in events.in_order()
        if action in ("start", "die")
    ]
    return line.index(("die", first)) < line.index(("start", second))


def kill_cell_and_all_others(stack: RunningStack) -> None:
    """Kill every process of the stack at once, and so all that could start it again."""
    for name in ("stack", "supervisord"):
        os.kill(stack.pid_of(name), signal.SIGSTOP)
    for pid in stack.processes().values():
        os.kill(pid, signal.SIGKILL)


ENDS: dict[str, Callable[[RunningStack], object]] = {
    "supervisor killed": lambda stack: os.kill(stack.pid_of("supervisord"), signal.SIGKILL),
    "everything killed": kill_cell_and_all_others,
    "ctrl-c": lambda stack: stack.stop(signal.SIGINT),
}


def test_ended_stack_leaves_no_exclusive_attempt_and_no_process() -> None:
    with open_folder() as folder:
        stack = RunningStack(folder / "home", cells=1, **SHORT)
        left: int | None = None
        for name, end in ENDS.items():
            stack.start()
            with session_of(stack) as session:
                if left is not None:
                    # What the last one left is found, reported and tried again by the next.
                    assert wait_for_end(session, left)["state"] == "SUCCEEDED"
                left = begin_work(session)
            assert len(guards(stack.home)) == 1
            if end(stack) == 0:
                assert remnants(stack.home) == [], name
                assert containers_of(stack.installation) == [], name
            check_nothing_is_left(stack, name)
        remove_containers(stack.installation)


def begin_work(session: Session) -> int:
    """Start an exclusive job whose first attempt runs and ignores signals."""
    job_id = session.submit(exclusive_job(DEAF_AT_FIRST, stop_grace_seconds=1))["id"]
    wait_until(lambda: running_on(session, job_id, "cell-1") == 1, seconds=60, what="it runs")
    return job_id


def check_nothing_is_left(stack: RunningStack, name: str) -> None:
    """Check that no container and no process of the stack is left when the lease is over."""
    wait_until(
        lambda: not containers_of(stack.installation, everything=False),
        seconds=60,
        what=f"{name}: no container runs",
    )
    wait_until(lambda: remnants(stack.home) == [], seconds=60, what=f"{name}: no process is left")
