"""A real Prefect from the package index (server, worker, engine) runs flows as jobs of Cellrun.

Expectations: a flow run is one job, also across a restart of the worker; a flow that fails, or
whose job fails, is a failed flow run with the reason; the job of a cancelled flow run ends.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import requests

from cellrun import Session
from cellrun.documents import Job
from controlplane.config.stack.parts.ports import free_port
from tests.architecture.source import ROOT
from tests.e2e.stack import RunningStack, remnants, wait_until
from tests.e2e.work import session_of, wait_for_end
from tests.harness.clients import installed_clients, path_with

# Alone: on a busy machine, Prefect's server with SQLite answers 503, and a flow run is crashed.
pytestmark = pytest.mark.serial

SECONDS = 300
"""Each process of Prefect takes seconds to start on a busy machine."""
POOL = "cells"
OPEN_STATES = ("SCHEDULED", "PENDING", "RUNNING", "CANCELLING")


class Prefect:
    """A server, its REST API and a worker, whose output is in `home`."""

    def __init__(self, clients: Path, home: Path, environment: Mapping[str, str]) -> None:
        self._clients, self.home = clients, home
        self._port = free_port()
        self._url = f"http://127.0.0.1:{self._port}/api"
        self._environment = {**environment, "PREFECT_API_URL": self._url}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.deployments: dict[str, str] = {}

    def start_server(self) -> None:
        """Start the server."""
        self._start("server", "server", "start", "--host", "127.0.0.1", "--port", str(self._port))

    def deploy(self) -> None:
        """Create the work pool and the deployments once the server answers."""
        wait_until(self._is_up, seconds=SECONDS, what="the server of Prefect is up")
        program = Path(__file__).parent / "flows.py"
        printed = self._run("python", str(program), POOL, str(self._clients))
        self.deployments = json.loads(printed.splitlines()[-1])

    def start_worker(self) -> None:
        """Start a worker, always under the same name."""
        self._start("worker", "worker", "start", "--pool", POOL, "--name", "worker-1")

    def kill(self, name: str) -> None:
        """Kill the server or the worker with -9."""
        with suppress(KeyError):
            process = self._processes.pop(name)
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def create(self, deployment: str, *, state: str = "SCHEDULED") -> str:
        """Create a flow run, and return its id."""
        path = f"/deployments/{self.deployments[deployment]}/create_flow_run"
        return str(self._call("POST", path, {"state": {"type": state}})["id"])

    def set_state(self, flow_run: str, state: str) -> None:
        """Move a flow run to a state, as a user does it."""
        body = {"state": {"type": state}}
        self._call("POST", f"/flow_runs/{flow_run}/set_state", body)

    def flow_run(self, flow_run: str) -> dict[str, Any]:
        """Return the document of a flow run."""
        return dict(self._call("GET", f"/flow_runs/{flow_run}"))

    def wait_for(self, flow_run: str, state: str) -> dict[str, Any]:
        """Return a flow run once it is in a state."""

        def is_so() -> bool:
            found = self.flow_run(flow_run)["state"]
            assert found["type"] in (state, *OPEN_STATES), found["message"]
            return bool(found["type"] == state)

        wait_until(is_so, seconds=SECONDS, what=f"the flow run is {state}")
        return self.flow_run(flow_run)

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        answer = requests.request(method, self._url + path, json=body, timeout=60)
        assert answer.ok, answer.text
        return answer.json()

    def _is_up(self) -> bool:
        process = self._processes["server"]
        assert process.poll() is None, (self.home / "server.log").read_text()
        with suppress(requests.RequestException):
            return requests.get(f"{self._url}/health", timeout=5).ok
        return False

    def _start(self, name: str, *words: str) -> None:
        with (self.home / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                [self._clients / "prefect", *words],
                cwd=self.home,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _run(self, program: str, *words: str) -> str:
        done = subprocess.run(
            [self._clients / program, *words],
            cwd=self.home,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout


def install_example(folder: Path) -> None:
    """Install the example into folder/site; Prefect finds its type of workers by the metadata."""
    source = shutil.copytree(ROOT / "examples" / "prefect", folder / "source")
    options = ["-q", "--no-deps", "--no-build-isolation", "--no-index", "--target", folder / "site"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, source], check=True)


@pytest.fixture(scope="module")
def prefect(stack: RunningStack, session: Session) -> Iterator[Prefect]:
    clients = installed_clients("prefect")
    home = stack.home.parent / "prefect"
    home.mkdir()
    given = {name: stack.environment[name] for name in ("CELLRUN_URL", "CELLRUN_TOKEN")}
    running = Prefect(
        clients,
        home,
        given
        | {
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "PATH": path_with(clients),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(home / "site")]),
            "PREFECT_HOME": str(home / "prefect"),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "PREFECT_WORKER_ENABLE_CANCELLATION": "true",
            "PREFECT_WORKER_CANCELLATION_POLL_SECONDS": "1",
            "PREFECT_LOGGING_LEVEL": "INFO",
            "PREFECT_SERVER_DATABASE_TIMEOUT": "60",
            "PREFECT_SERVER_DATABASE_CONNECTION_TIMEOUT": "60",
            "PREFECT_CLIENT_MAX_RETRIES": "20",
        },
    )
    with session_of(stack, operator=True) as operator:
        operator.put_secret("prefect-level", {"value": "DEBUG"})
    try:
        install_example(home)
        running.start_server()
        running.deploy()
        running.start_worker()
        yield running
    finally:
        running.kill("worker")
        running.kill("server")
        for job in session.jobs(label=f"prefect.io/work-pool-name={POOL}"):
            session.cancel_job(job["id"], force=True)
        with session_of(stack, operator=True) as operator:
            operator.delete_secret("prefect-level")
    wait_until(lambda: remnants(home) == [], seconds=60, what="no process of Prefect is left")


def jobs_of(session: Session, flow_run: str) -> list[Job]:
    """Return the jobs of a flow run."""
    return list(session.jobs(label=f"prefect.io/flow-run-id={flow_run}"))


def message_of(flow_run: Mapping[str, Any]) -> str:
    """Return why a flow run is in its state."""
    return str(flow_run["state"]["message"])


def wait_for_job(session: Session, flow_run: str) -> Job:
    """Return the only job of a flow run."""
    wait_until(lambda: bool(jobs_of(session, flow_run)), seconds=SECONDS, what="it has a job")
    [job] = jobs_of(session, flow_run)
    return job


@pytest.fixture(scope="module")
def runs(prefect: Prefect) -> Mapping[str, str]:
    """Flow runs that start at once, since each needs seconds; those that run are two."""
    wanted = {"good": "good", "bad": "bad", "running": "endless", "crashing": "endless"}
    return {name: prefect.create(flow) for name, flow in wanted.items()} | {
        "waiting": prefect.create("never")
    }


def test_flow_run_is_one_job_and_reports_its_end(
    prefect: Prefect, session: Session, runs: Mapping[str, str]
) -> None:
    done = prefect.wait_for(runs["good"], "COMPLETED")
    job = wait_for_job(session, runs["good"])
    assert done["infrastructure_pid"] == str(job["id"])
    assert wait_for_end(session, job["id"])["state"] == "SUCCEEDED"

    failed = prefect.wait_for(runs["bad"], "FAILED")
    assert "no such table" in message_of(failed)
    wait_for_end(session, wait_for_job(session, runs["bad"])["id"])


def test_setting_from_a_secret_is_not_in_the_job(session: Session, runs: Mapping[str, str]) -> None:
    names = {
        name: set(session.job(wait_for_job(session, runs[name])["id"])["spec"]["env"])
        for name in ("good", "bad")
    }
    # Prefect passes all settings of its worker on.
    assert names["bad"] - names["good"] == {"PREFECT_LOGGING_LEVEL"}


def test_flow_run_that_is_scheduled_again_is_another_job(
    prefect: Prefect, session: Session, runs: Mapping[str, str]
) -> None:
    flow_run = runs["bad"]
    prefect.wait_for(flow_run, "FAILED")
    first = wait_for_end(session, wait_for_job(session, flow_run)["id"])

    prefect.set_state(flow_run, "SCHEDULED")

    wait_until(lambda: len(jobs_of(session, flow_run)) == 2, seconds=SECONDS, what="a second job")
    second = max(jobs_of(session, flow_run), key=lambda job: job["id"])
    assert second["id"] != first["id"]
    wait_for_end(session, second["id"])
    prefect.wait_for(flow_run, "FAILED")


def test_restarted_worker_follows_the_jobs_of_the_killed_one(
    prefect: Prefect, session: Session, runs: Mapping[str, str]
) -> None:
    running, crashing, waiting = (runs[name] for name in ("running", "crashing", "waiting"))
    jobs = {run: wait_for_job(session, run) for run in (running, crashing, waiting)}
    for run in (running, crashing):
        prefect.wait_for(run, "RUNNING")

    prefect.kill("worker")
    session.cancel_job(jobs[crashing]["id"], force=True)
    wait_for_end(session, jobs[crashing]["id"])
    # The killed worker had begun this one, but its request did not reach Cellrun.
    begun = prefect.create("good", state="PENDING")
    prefect.start_worker()

    crashed = prefect.wait_for(crashing, "CRASHED")
    assert f"job {jobs[crashing]['id']} ended KILLED: task was cancelled" in message_of(crashed)
    prefect.wait_for(begun, "COMPLETED")
    prefect.set_state(running, "CANCELLING")
    prefect.wait_for(running, "CANCELLED")
    wait_for_end(session, jobs[running]["id"])
    prefect.set_state(waiting, "CANCELLING")
    prefect.wait_for(waiting, "CANCELLED")
    assert wait_for_end(session, jobs[waiting]["id"])["state"] == "KILLED"
    for run in (running, crashing, waiting, begun):
        assert len(jobs_of(session, run)) == 1
