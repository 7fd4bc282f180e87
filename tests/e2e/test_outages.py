"""Parts of the system are killed while forty tasks run: all succeed, each is started once.

Starts are counted by the engine, received outside Cellrun by a subscriber that was connected
before the run.
"""

import signal
from collections.abc import Iterator

import pytest

from cellrun import Session
from cellrun.documents import Attempt
from tests.e2e.engine import EngineEvents, containers_of, remove_containers
from tests.e2e.stack import RunningStack, open_folder, remnants, wait_until
from tests.e2e.work import (
    attempts_of,
    session_of,
    sleepers,
    wait_for_end,
    wait_for_mid_run,
    whole_log,
)

pytestmark = [pytest.mark.stack, pytest.mark.engine]

TASKS = 40
CONTROL = ("placement", "convergence", "inbox", "beat")


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    with open_folder() as folder:
        with RunningStack(folder / "home") as running:
            yield running
        left = containers_of(running.installation)
        remove_containers(running.installation)
        assert left == []
        assert remnants(running.home) == []


@pytest.fixture
def session(stack: RunningStack) -> Iterator[Session]:
    with session_of(stack) as session:
        yield session


@pytest.fixture
def events(stack: RunningStack) -> Iterator[EngineEvents]:
    with EngineEvents(stack.installation) as engine_events:
        yield engine_events


def start_run(session: Session) -> int:
    """Submit the tasks and return when some have ended and others run."""
    job_id = session.submit(sleepers(TASKS, 1, name="outage"))["id"]
    wait_for_mid_run(session, job_id)
    return job_id


def check_all_succeeded_once(session: Session, events: EngineEvents, job_id: int) -> None:
    """The job is over, every task succeeded, and the engine started one container for each."""
    job = wait_for_end(session, job_id)
    tasks = list(session.tasks(job_id))
    assert [task["state"] for task in tasks] == ["SUCCEEDED"] * TASKS, job["failure_reason"]
    assert events.starts_by_task(job_id) == {task["id"]: 1 for task in tasks}
    assert events.attempts_started(job_id) == {task["attempt_uid"] for task in tasks}
    for task in tasks:
        assert task["exit_code"] == 0
        assert whole_log(session, str(task["attempt_uid"])) == "begun\ndone\n"


def running_on(session: Session, job_id: int, cell: str) -> list[str]:
    """The uids of the attempts that run on a cell."""
    return [
        str(task["attempt_uid"])
        for task in session.tasks(job_id)
        if task["state"] == "RUNNING" and task["cell_id"] == cell
    ]


def test_restarted_cell_adopts_its_containers(
    stack: RunningStack, session: Session, events: EngineEvents
) -> None:
    job_id = start_run(session)
    wait_until(lambda: len(running_on(session, job_id, "cell-1")) >= 2, seconds=30, what="work")
    adopted = running_on(session, job_id, "cell-1")
    stack.kill_and_await("cell-1")
    check_all_succeeded_once(session, events, job_id)
    by_uid: dict[str, Attempt] = {
        attempt["uid"]: attempt
        for attempts in attempts_of(session, job_id).values()
        for attempt in attempts
    }
    assert adopted
    for uid in adopted:
        assert (by_uid[uid]["state"], by_uid[uid]["number"]) == ("SUCCEEDED", 1)
        assert by_uid[uid]["cell_id"] == "cell-1"


def test_redis_killed_and_restarted_empty_loses_no_task(
    stack: RunningStack, session: Session, events: EngineEvents
) -> None:
    job_id = start_run(session)
    stack.kill_and_await("redis")
    check_all_succeeded_once(session, events, job_id)


def test_ticks_inbox_and_beat_killed_lose_no_task(
    stack: RunningStack, session: Session, events: EngineEvents
) -> None:
    job_id = start_run(session)
    stack.kill_and_await(*CONTROL)
    check_all_succeeded_once(session, events, job_id)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=["killed", "clean"])
def test_postgresql_restarted_loses_no_task(
    stack: RunningStack, session: Session, events: EngineEvents, number: int
) -> None:
    job_id = start_run(session)
    stack.kill_and_await("postgres", number=number)
    check_all_succeeded_once(session, events, job_id)


def test_everything_but_the_containers_killed_at_once_loses_no_task(
    stack: RunningStack, session: Session, events: EngineEvents
) -> None:
    job_id = start_run(session)
    stack.kill_and_await("postgres", "redis", "web", *CONTROL, "cell-1", "cell-2")
    check_all_succeeded_once(session, events, job_id)
