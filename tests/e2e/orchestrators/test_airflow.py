"""A real Airflow from the package index (scheduler, workers, triggerer) runs jobs of Cellrun.

Expectations: a worker that is killed and retried has one job; a command that fails is a task that
fails, with the reason; a task that a user ends has a cancelled job; a cleared task runs again.
"""

import os
import signal
import subprocess
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
from tests.e2e.work import wait_for_end
from tests.harness.clients import installed_clients, path_with

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("shared stack")]

SECONDS = 300
"""Each process of Airflow takes seconds to start on a busy machine."""


class Airflow:
    """The REST API of a running Airflow, for DAGs of one task."""

    def __init__(self, url: str, logs: Path) -> None:
        self._url, self._logs = url, logs
        self._http = requests.Session()

    def is_up(self) -> bool:
        """Return whether it has read the DAGs."""
        with suppress(requests.RequestException):
            token = self._http.get(f"{self._url}/auth/token").json()["access_token"]
            self._http.headers["Authorization"] = f"Bearer {token}"
            return self._call("GET", "/dags")["total_entries"] == 6
        return False

    def start(self, dag: str) -> None:
        """Start the only run of a DAG."""
        body = {"dag_run_id": "run-1", "logical_date": None}
        self._call("POST", f"/dags/{dag}/dagRuns", body)

    def clear(self, dag: str) -> None:
        """Let the task run again, as a user does it."""
        body = {"dag_run_id": "run-1", "dry_run": False, "only_failed": False}
        self._call("POST", f"/dags/{dag}/clearTaskInstances", body)

    def fail(self, dag: str) -> None:
        """Mark the task as failed, as a user does it."""
        self._call("PATCH", f"{self._task(dag)}", {"new_state": "failed"})

    def task(self, dag: str) -> Mapping[str, Any]:
        """Return the document of the task."""
        return self._call("GET", self._task(dag))

    def wait_for(self, dag: str, state: str, *, tries: int = 1) -> None:
        """Return when the task has a state after this number of tries."""

        def is_so() -> bool:
            task = self.task(dag)
            return task["state"] == state and task["try_number"] == tries

        wait_until(is_so, seconds=SECONDS, what=f"{dag} is {state} after {tries} tries")

    def result(self, dag: str) -> Any:
        """Return what the operator returned."""
        path = f"{self._task(dag)}/xcomEntries/return_value"
        return self._call("GET", path)["value"]

    def log(self, dag: str, number: int) -> str:
        """Return the log of a try."""
        [path] = self._logs.glob(f"dag_id={dag}/**/attempt={number}.log")
        return path.read_text()

    def _task(self, dag: str) -> str:
        return f"/dags/{dag}/dagRuns/run-1/taskInstances/task"

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        answer = self._http.request(method, f"{self._url}/api/v2{path}", json=body, timeout=60)
        assert answer.ok, answer.text
        return answer.json()


@pytest.fixture(scope="module")
def airflow(stack: RunningStack) -> Iterator[Airflow]:
    clients = installed_clients("airflow")
    home = stack.home.parent / "airflow"
    home.mkdir()
    ports: set[int] = set()
    for _ in range(3):
        ports.add(free_port(taken=ports))
    port, *log_ports = ports
    url = f"http://127.0.0.1:{port}"
    given = {name: stack.environment[name] for name in ("CELLRUN_URL", "CELLRUN_TOKEN")}
    settings = {
        "CORE__LOAD_EXAMPLES": "false",
        "CORE__DAGS_FOLDER": str(Path(__file__).parent / "dags"),
        "CORE__DAGS_ARE_PAUSED_AT_CREATION": "false",
        "CORE__PARALLELISM": "4",
        "CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "true",
        "API__BASE_URL": url,
        "API__HOST": "127.0.0.1",
        "API__PORT": str(port),
        "API__WORKERS": "1",
        "LOGGING__WORKER_LOG_SERVER_PORT": str(log_ports[0]),
        "LOGGING__TRIGGER_LOG_SERVER_PORT": str(log_ports[1]),
        "SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.2",
        "TRIGGERER__JOB_HEARTBEAT_SEC": "1",
        "WORKERS__MIN_HEARTBEAT_INTERVAL": "1",
    }
    environment = given | {
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "PATH": path_with(clients),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "examples" / "airflow")]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "AIRFLOW_HOME": str(home),
        **{f"AIRFLOW__{name}": value for name, value in settings.items()},
    }
    with (home / "output").open("wb") as output:
        process = subprocess.Popen(
            [clients / "airflow", "standalone"],
            cwd=home,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    running = Airflow(url, home / "logs")

    def is_up() -> bool:
        assert process.poll() is None, (home / "output").read_text()
        return running.is_up()

    try:
        wait_until(is_up, seconds=SECONDS, what="Airflow has read the DAGs")
        # All runs start at once, since Airflow takes seconds for each step of one.
        for dag in ("good", "early", "late", "bad", "slow", "stuck"):
            running.start(dag)
        yield running
    finally:
        # Its processes need twenty seconds to end by themselves.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    wait_until(lambda: remnants(home) == [], seconds=60, what="no process of Airflow is left")


def jobs_of(session: Session, dag: str) -> list[Job]:
    """Return the jobs of a DAG, oldest first."""
    return sorted(session.jobs(label=f"airflow-dag={dag}"), key=lambda job: job["id"])


@pytest.mark.parametrize("dag", ["early", "late"])
def test_worker_that_is_killed_and_retried_has_one_job(
    airflow: Airflow, session: Session, dag: str
) -> None:
    airflow.wait_for(dag, "success", tries=2)
    [job] = jobs_of(session, dag)
    assert job["state"] == "SUCCEEDED"
    assert airflow.result(dag) == job["id"]


def test_command_that_fails_is_a_failed_task_with_the_reason(
    airflow: Airflow, session: Session
) -> None:
    airflow.wait_for("bad", "failed", tries=2)
    # A retry of Airflow after a failure of the job is another job.
    jobs = jobs_of(session, "bad")
    assert [job["state"] for job in jobs] == ["FAILED", "FAILED"]
    for number, job in enumerate(jobs, start=1):
        log = airflow.log("bad", number)
        assert f"job {job['id']} ended FAILED: {job['failure_reason']}" in log
        assert "no such table" in log


def test_task_that_a_user_ends_has_a_cancelled_job(airflow: Airflow, session: Session) -> None:
    airflow.wait_for("slow", "deferred")
    airflow.fail("slow")
    [job] = jobs_of(session, "slow")
    assert wait_for_end(session, job["id"])["state"] == "KILLED"


def test_task_that_is_stopped_on_its_worker_has_a_cancelled_job(
    airflow: Airflow, session: Session
) -> None:
    wait_until(lambda: bool(jobs_of(session, "stuck")), seconds=SECONDS, what="its job is there")
    airflow.wait_for("stuck", "running")
    airflow.fail("stuck")
    [job] = jobs_of(session, "stuck")
    assert wait_for_end(session, job["id"])["state"] == "KILLED"


def test_cleared_task_runs_again(airflow: Airflow, session: Session) -> None:
    airflow.wait_for("good", "success")
    airflow.clear("good")
    airflow.wait_for("good", "success", tries=2)
    first, second = jobs_of(session, "good")
    assert (first["state"], second["state"]) == ("SUCCEEDED", "SUCCEEDED")
    assert airflow.result("good") == second["id"]
