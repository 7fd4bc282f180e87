"""A cell that is killed while it evacuates: its successor ends the stopped tasks, for free.

The supervisor of a real stack starts it again. Tasks do not heed the signal, and write down each
time that they begin and each time that they receive the signal.
"""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellrun import Session
from tests.e2e.stack import RunningStack, open_folder, remnants, wait_until
from tests.e2e.work import attempts_of, session_of, wait_for_end

LEAVING, OTHER = "cell-1", "cell-2"
# Until tasks that ignore the signal are killed: by then the evacuating cell is dead itself.
GRACE_SECONDS = 12
REPLICAS = 2
LONG = 60
# What needs a file takes the long path through the pipeline; the other goes to the spawner.
PATHS: dict[str, dict[str, Any]] = {"short": {}, "long": {"result_file": "/result"}}


@pytest.fixture
def stack() -> Iterator[RunningStack]:
    with open_folder() as folder:
        with RunningStack(folder / "home", cells=2, engine="process") as running:
            yield running
        assert remnants(running.home) == []


@pytest.fixture
def session(stack: RunningStack) -> Iterator[Session]:
    with session_of(stack, operator=True) as session:
        yield session


def deaf_job(place: Path, name: str, **fields: Any) -> dict[str, Any]:
    """Return a job whose tasks run until they may go, and ignore the stop signal."""
    script = (
        f"trap 'echo $CELLRUN_ATTEMPT_UID >> {place}/stopped' TERM;"
        f" echo $CELLRUN_TASK_ID >> {place}/begun;"
        f" while ! [ -e {place}/go ]; do sleep 0.1; done"
    )
    return {
        "name": name,
        "task_type": "process",
        "command": ["/bin/sh", "-c", script],
        "resources": {"cpu": 0.1, "memory": "64Mi"},
        "replicas": REPLICAS,
        "stop_grace_seconds": GRACE_SECONDS,
        **fields,
    }


def lines(file: Path) -> list[str]:
    return file.read_text().split() if file.exists() else []


def all_run(session: Session, jobs: list[int]) -> bool:
    return all(task["state"] == "RUNNING" for job in jobs for task in session.tasks(job))


def test_successor_of_a_killed_cell_finishes_its_evacuation_without_charge(
    stack: RunningStack, session: Session
) -> None:
    place = stack.home / "place"
    place.mkdir()
    count = REPLICAS * len(PATHS)
    session.cordon(OTHER)
    jobs = [session.submit(deaf_job(place, name, **rest))["id"] for name, rest in PATHS.items()]
    wait_until(
        lambda: len(lines(place / "begun")) == count and all_run(session, jobs),
        seconds=LONG,
        what="all tasks run",
    )
    session.uncordon(OTHER)
    first = {str(task["attempt_uid"]) for job in jobs for task in session.tasks(job)}
    incarnation = session.cell(LEAVING)["incarnation"]  # type: ignore[typeddict-item]
    leaving = stack.pid_of(LEAVING)
    os.kill(leaving, signal.SIGTERM)
    wait_until(lambda: set(lines(place / "stopped")) >= first, seconds=LONG, what="all are stopped")
    assert stack.pid_of(LEAVING) == leaving
    stack.kill_and_await(LEAVING)
    wait_until(
        lambda: len(lines(place / "begun")) == 2 * count and all_run(session, jobs),
        seconds=LONG,
        what="all tasks run again",
    )
    (place / "go").touch()
    for job in jobs:
        assert wait_for_end(session, job)["state"] == "SUCCEEDED"
        check_free(session, job)
    assert set(Counter(lines(place / "begun")).values()) == {2}
    assert session.cell(LEAVING)["incarnation"] == incarnation  # type: ignore[typeddict-item]


def check_free(session: Session, job: int) -> None:
    """Each task was ended once on the cell that left, and ran once more, and paid for neither."""
    for before, after in attempts_of(session, job).values():
        assert (before["cell_id"], before["state"]) == (LEAVING, "PREEMPTED")
        assert before["release_kind"] == "confirmed"
        assert (after["state"], after["exit_code"]) == ("SUCCEEDED", 0)
    for task in session.tasks(job):
        counts = ("preemption_count", "failure_count", "system_failure_count")
        assert [task[name] for name in counts] == [0, 0, 0]  # type: ignore[literal-required]
