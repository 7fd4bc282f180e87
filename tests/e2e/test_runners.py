"""A runner of another package on a real cell that is killed -9: nothing outside begins twice.

The stack has one cell; the one with the runner is ours: no supervisor starts it again.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellrun import Session
from cellrun.documents import Task
from tests.architecture.source import ROOT
from tests.conformance.outside import Outside
from tests.e2e.stack import Companion, RunningStack, open_folder, remnants, wait_until
from tests.e2e.work import SMALL, session_of, wait_for_end, whole_log

pytestmark = pytest.mark.stack

OWN = "with-runner"


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    with open_folder() as folder:
        with RunningStack(folder / "home", cells=1, engine="process") as running:
            yield running
        assert remnants(running.home) == []


@pytest.fixture(scope="module")
def session(stack: RunningStack) -> Iterator[Session]:
    with session_of(stack) as session:
        yield session


@pytest.fixture
def outside() -> Iterator[Outside]:
    with Outside() as outside:
        yield outside


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the example package is installed."""
    site, source = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("source")
    subprocess.run(["cp", "-r", str(ROOT / "examples" / "runners"), str(source)], check=True)
    options = ["--no-deps", "--no-build-isolation", "--no-index", "-qq", "--target", str(site)]
    command = [sys.executable, "-m", "pip", "install", *options, str(source / "runners")]
    subprocess.run([*command, "--disable-pip-version-check"], check=True)
    return site


@pytest.fixture(scope="module")
def cell(stack: RunningStack, site: Path) -> Companion:
    """A cell where it is installed."""
    folder = stack.home / "own"
    folder.mkdir()
    (folder / "key").write_text(enroll(stack, OWN))
    environment = stack.environment_of("cell-1") | {
        "CELLRUN_CELL_NAME": OWN,
        "CELLRUN_CELL_HOME": str(folder),
        "CELLRUN_CELL_KEY_FILE": str(folder / "key"),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{site}",
    }
    return Companion([sys.executable, "-m", "workers"], environment, folder / "log")


def test_installed_runners_are_listed(site: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "workers.runners"],
        env={"PYTHONPATH": f"{ROOT}{os.pathsep}{site}"},
        capture_output=True,
        text=True,
        check=True,
    )
    names = [line.split()[0] for line in done.stdout.splitlines()]
    assert names == ["container", "process", "http-job"]


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


def outside_job(outside: Outside, **fields: Any) -> dict[str, Any]:
    return {
        "name": "outside",
        "task_type": "http-job",
        "command": ["reindex"],
        "env": {"JOB_SERVICE": outside.url},
        "resources": SMALL,
        **fields,
    }


def task_in(session: Session, job_id: int, state: str) -> Task:
    """The job's task, once it is in that state."""
    found: list[Task] = []

    def is_so() -> bool:
        found[:] = [task for task in session.tasks(job_id) if task["state"] == state]
        return bool(found)

    wait_until(is_so, seconds=60, what=f"the task of job {job_id} is {state}")
    return found[0]


def test_restarted_cell_resumes_the_external_job_of_its_runner(
    session: Session, cell: Companion, outside: Outside
) -> None:
    job_id = session.submit(outside_job(outside, allow_unsatisfiable=True))["id"]

    def shows_missing_runner() -> bool:
        [task] = session.tasks(job_id)
        reason: dict[str, Any] = dict(task["pending_reason"] or {})
        is_it = reason.get("code") == "no_cell_matches"
        return is_it and "task type http-job" in str(reason["text"])

    wait_until(shows_missing_runner, seconds=60, what="it waits for a cell with its runner")
    with cell:
        uid = str(task_in(session, job_id, "RUNNING")["attempt_uid"])
        outside.finish(uid, lines=["one"])
        wait_until(lambda: "one" in whole_log(session, uid), seconds=30, what="its line is logged")
        cell.end(signal.SIGKILL)
    outside.finish(uid, lines=["one", "two"])
    with cell:
        outside.finish(uid, lines=["one", "two", "three"], state="done", result="done in 3 parts")
        assert wait_for_end(session, job_id)["state"] == "SUCCEEDED"
        [task] = session.tasks(job_id)
        assert task["result"] == "done in 3 parts"
        [attempt] = session.attempts(task["id"])
        assert attempt["cell_id"] == OWN
        assert attempt["plugin_phase"] == "succeeded"  # type: ignore[typeddict-item]
        assert whole_log(session, uid) == f"job {uid} was submitted\none\ntwo\nthree\n"
    assert (outside.jobs[uid].begun, outside.count_requests("PUT", uid)) == (1, 1)
    assert outside.jobs[uid].command == ["reindex"]


def test_cancelled_task_is_released_after_its_external_job_has_ended(
    session: Session, cell: Companion, outside: Outside
) -> None:
    outside.cancels_at_once = False
    with cell:
        job_id = session.submit(outside_job(outside))["id"]
        task = task_in(session, job_id, "RUNNING")
        uid = str(task["attempt_uid"])
        session.cancel_job(job_id)
        wait_until(
            lambda: outside.count_requests("DELETE", uid) >= 2, seconds=60, what="it is asked again"
        )
        [attempt] = session.attempts(task["id"])
        assert attempt["released_at"] is None
        outside.finish(uid, state="cancelled")
        assert wait_for_end(session, job_id)["state"] == "KILLED"
        wait_until(
            lambda: session.attempts(task["id"])[0]["released_at"] is not None,
            seconds=60,
            what="its place is free",
        )
        assert session.attempts(task["id"])[0]["release_kind"] == "confirmed"


def test_failed_external_job_costs_a_retry_and_starts_another(
    session: Session, cell: Companion, outside: Outside
) -> None:
    with cell:
        job_id = session.submit(outside_job(outside, retries={"failure": 1}))["id"]
        first = str(task_in(session, job_id, "RUNNING")["attempt_uid"])
        outside.finish(first, state="failed", message="bad row")
        wait_until(lambda: len(outside.jobs) == 2, seconds=60, what="another job is begun")
        [second] = outside.jobs.keys() - {first}
        outside.finish(second, state="done")
        assert wait_for_end(session, job_id)["state"] == "SUCCEEDED"
        [task] = session.tasks(job_id)
        assert task["attempt_uid"] == second
        assert task["failure_count"] == 1  # type: ignore[typeddict-item]
