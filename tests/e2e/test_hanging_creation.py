"""An engine that does not answer a creation: shown as `creating`, ended by the time limit for it.

Backend.AI: what stays in a stage for longer than its configured timeout is tried again, elsewhere.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cellrun import Session
from cellrun.documents import Attempt
from tests.conformance.cable import Cable
from tests.e2e.engine import remove_containers
from tests.e2e.stack import RunningStack, open_folder, wait_until
from tests.e2e.work import attempts_of, session_of, shell_job, wait_for_end
from workers.drivers.docker.connection import find_socket

pytestmark = [pytest.mark.stack, pytest.mark.engine]

LIMIT = 4
# A stack that has just started lets its cells speak for a lease before it judges anything.
PATIENCE = 60
CREATE = b"/containers/create"


@pytest.fixture
def folder() -> Iterator[Path]:
    with open_folder() as folder:
        yield folder


@pytest.fixture
def line(folder: Path) -> Iterator[Cable]:
    """Between the stack and the machine's engine."""
    cable = Cable(f"{folder}/engine", find_socket())
    yield cable
    cable.close()


@pytest.fixture
def session(folder: Path, line: Cable) -> Iterator[Session]:
    engine = f"unix://{folder}/engine"
    with RunningStack(folder / "home", cells=1, DOCKER_HOST=engine) as stack:
        with session_of(stack, operator=True) as session:
            session.put_pool("default", {"create_timeout_seconds": LIMIT})
            yield session
        remove_containers(stack.installation)


def test_hanging_creation_is_a_system_failure_and_the_task_is_retried(
    session: Session, line: Cable
) -> None:
    def first() -> Attempt | None:
        (attempts,) = attempts_of(session, job["id"]).values()
        return attempts[0] if attempts else None

    def is_creating() -> bool:
        attempt = first()
        return attempt is not None and (attempt["state"], attempt["phase"]) == (
            "BUILDING",
            "creating",
        )

    def has_ended() -> bool:
        attempt = first()
        return attempt is not None and attempt["finished_at"] is not None

    line.hold(CREATE)
    job = session.submit(shell_job("echo done", retries={"system": 1, "failure": 0}))
    wait_until(is_creating, seconds=20, what="the attempt is creating")
    wait_until(has_ended, seconds=PATIENCE, what="the attempt ended by its time limit")
    line.hold(None)
    assert wait_for_end(session, job["id"])["state"] == "SUCCEEDED"
    (task,) = session.tasks(job["id"])
    attempts = session.attempts(task["id"])
    assert [attempt["state"] for attempt in attempts] == ["FAILED", "SUCCEEDED"]
    assert task["system_failure_count"] == 1
    changes = [
        change
        for change in session.history("tasks", task["id"], merged=False)
        if change["attempt_uid"] == attempts[0]["uid"]
    ]
    rows = [(change["reason"], change["message"]) for change in reversed(changes)]
    assert rows[:4] == [
        ("placed", ""),
        ("building", "preparing"),
        ("building", "creating"),
        ("build_timeout", ""),
    ]
    assert rows[-1][0] == "released"
