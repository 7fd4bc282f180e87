"""Services and sessions with real processes and containers: served, restarted, reached, ended."""

import http.client
from typing import Any

import pytest

from cellrun import Session
from tests.e2e.stack import RunningStack, wait_until
from tests.e2e.work import attempts_of, run_to_end, shell_job
from workers.drivers.docker.connection import connect

pytestmark = [pytest.mark.stack, pytest.mark.engine, pytest.mark.xdist_group("one cell")]

SERVE = "mkdir www; echo $CELLRUN_ATTEMPT_NUMBER > www/index.html; sleep 1; " + (
    "exec httpd -f -p $CELLRUN_PORT_HTTP -h www"
)
CHECK = {"http": {"port": "http", "path": "/"}, "interval_seconds": 1, "retries": 2}


def fetch(address: str) -> str:
    """What is served there; empty: nothing is."""
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request("GET", "/")
        return connection.getresponse().read().decode().strip()
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()


def wait_for_service(session: Session, job_id: int, number: int) -> dict[str, Any]:
    """The attempt of that number, once it is RUNNING."""
    found: list[dict[str, Any]] = []

    def is_running() -> bool:
        [attempts] = attempts_of(session, job_id).values()
        found[:] = [
            dict(attempt)
            for attempt in attempts
            if attempt["number"] == number and attempt["state"] == "RUNNING"
        ]
        return bool(found)

    wait_until(is_running, seconds=60, what=f"attempt {number} of job {job_id} is RUNNING")
    return found[0]


def test_service_is_restarted_without_limit_and_without_charge(
    stack: RunningStack, session: Session
) -> None:
    spec = shell_job(SERVE, name="service", kind="inference", ports=["http"], health_check=CHECK)
    job_id = session.submit(spec)["id"]
    first = wait_for_service(session, job_id, 1)
    assert fetch(first["addresses"]["http"]) == "1", "RUNNING, but it does not serve"

    stack.kill_and_await("cell-1")
    assert fetch(first["addresses"]["http"]) == "1"
    engine = connect()
    try:
        engine.kill(f"cellrun-{first['uid']}", "SIGKILL")
        second = wait_for_service(session, job_id, 2)
        assert fetch(second["addresses"]["http"]) == "2"
        # What serves nothing any more, and has not ended, is ended by its check.
        name = f"cellrun-{second['uid']}"
        stopped = engine.exec_create(name, ["sh", "-c", "rm -r www"])
        engine.exec_start(stopped["Id"])
        third = wait_for_service(session, job_id, 3)
    finally:
        engine.close()
    assert fetch(third["addresses"]["http"]) == "3"
    [task] = session.tasks(job_id)
    counts = ("failure_count", "preemption_count", "system_failure_count")
    assert [task[count] for count in counts] == [0, 0, 0]  # type: ignore[literal-required]
    [attempts] = attempts_of(session, job_id).values()
    assert [attempt["state"] for attempt in attempts[:2]] == ["FAILED", "FAILED"]
    assert attempts[1]["failure_reason"] == (
        "its health check failed 2 times in a row: GET /: HTTP status 404"
    )
    session.cancel_job(job_id)
    wait_until(lambda: session.job(job_id)["state"] == "KILLED", seconds=60, what="it is killed")


@pytest.mark.parametrize(
    ("limit", "script", "text"),
    [
        ("idle_timeout_seconds", "sleep 300", "it was idle for longer than its idle"),
        ("lifetime_seconds", "while :; do echo x; sleep 0.1; done", "its lifetime has ended"),
    ],
)
def test_a_session_ends_by_its_limit_and_is_not_tried_again(
    session: Session, limit: str, script: str, text: str
) -> None:
    fields = {limit: 2, "stop_grace_seconds": 0.5, "retries": {"failure": 3}}
    job, task = run_to_end(session, shell_job(script, kind="interactive", **fields))
    assert (job["state"], task["state"], task["attempt_number"]) == ("KILLED", "KILLED", 1)
    assert task["failure_reason"].startswith(text)
