"""Other users of the machine, and web pages in a browser on it, cannot affect a stack."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
import requests

from cellrun import Session
from tests.e2e.stack import RunningStack, wait_until
from tests.e2e.work import run_to_end, session_of

pytestmark = [pytest.mark.stack, pytest.mark.xdist_group("shared stack")]


@pytest.fixture(scope="module")
def stack(shared_stack: RunningStack) -> RunningStack:
    return shared_stack


@pytest.fixture(scope="module")
def session(stack: RunningStack) -> Iterator[Session]:
    with session_of(stack) as session:
        yield session


def job(name: str) -> dict[str, Any]:
    return {"name": name, "task_type": "process", "command": ["true"]}


def secrets_of(stack: RunningStack) -> list[str]:
    broker = urlsplit(stack.environment["CELERY_BROKER_URL"])
    return [str(broker.password), *stack.flower_login[1:]]


def web_of(stack: RunningStack) -> str:
    return stack.environment["CELLRUN_URL"]


def test_redis_requires_a_password(stack: RunningStack) -> None:
    broker = urlsplit(stack.environment["CELERY_BROKER_URL"])
    with (
        redis.Redis(port=broker.port or 0) as client,
        pytest.raises(redis.exceptions.AuthenticationError),
    ):
        client.lpush("inbox.0", "x")


def test_no_command_line_shows_a_password(stack: RunningStack) -> None:
    shown = [
        path.read_text()
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if path.exists() and str(os.getpid()) != path.parent.name
    ]
    assert any("celery" in line for line in shown)
    for secret in secrets_of(stack):
        assert len(secret) >= 12
        assert not any(secret in line for line in shown)


@pytest.mark.parametrize("command", ["shutdown", "pool_restart"])
def test_no_worker_listens_to_remote_control(
    stack: RunningStack, session: Session, command: str
) -> None:
    before = stack.processes()
    done = subprocess.run(
        [sys.executable, "-m", "celery", "control", "--timeout", "2", command],
        env={
            "PATH": os.environ["PATH"],
            "CELERY_BROKER_URL": stack.environment["CELERY_BROKER_URL"],
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert "No nodes replied" in done.stderr
    with redis.Redis.from_url(stack.environment["CELERY_BROKER_URL"]) as client:
        assert client.pubsub_channels("*pidbox*") == []
        assert not client.exists("_kombu.binding.celery.pidbox")
    assert run_to_end(session, job("after"))[0]["state"] == "SUCCEEDED"
    assert stack.processes() == before


def test_flower_needs_its_login_for_pages_and_api(stack: RunningStack) -> None:
    for path in ("/", "/workers", "/tasks", "/metrics", "/api/workers", "/api/tasks"):
        url = stack.flower_url + path
        assert requests.get(url, timeout=10).status_code == 401, path
        assert requests.get(url, auth=("flower", "wrong"), timeout=10).status_code == 401, path
        assert requests.get(url, auth=stack.flower_login, timeout=30).status_code == 200, path


def test_flower_control_requests_are_refused(stack: RunningStack) -> None:
    before = stack.processes()
    for path in ("worker/shutdown/cell@cell-1", "worker/pool/restart/cell@cell-1"):
        url = f"{stack.flower_url}/api/{path}"
        assert requests.post(url, auth=stack.flower_login, timeout=10).status_code == 403
    task = f"{stack.flower_url}/api/task/async-apply/placement.tick"
    answer = requests.post(task, auth=stack.flower_login, json={"args": []}, timeout=10)
    assert answer.status_code == 403
    assert stack.processes() == before


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://evil.example"},
    ],
)
def test_flower_refuses_requests_of_other_sites(
    stack: RunningStack, headers: dict[str, str]
) -> None:
    url = f"{stack.flower_url}/api/worker/shutdown/cell@cell-1"
    answer = requests.post(url, auth=stack.flower_login, headers=headers, timeout=10)
    assert answer.status_code == 403
    assert answer.text.startswith("Cross-")  # and not only that it is read-only
    assert "Access-Control-Allow-Origin" not in answer.headers
    listed = requests.get(f"{stack.flower_url}/api/tasks", headers=headers, timeout=10)
    assert listed.status_code == 401
    assert "Access-Control-Allow-Origin" not in listed.headers


def test_requests_for_a_foreign_host_name_are_refused(stack: RunningStack) -> None:
    """As those of a page whose own name was made to lead to this machine (DNS rebinding)."""
    foreign = {"Host": "evil.example", "Origin": "http://evil.example"}
    for path in ("/healthz", "/readyz", "/metrics", "/api/schema/", "/api/v1/jobs"):
        answer = requests.get(web_of(stack) + path, headers=foreign, timeout=10)
        assert answer.status_code == 400, path
        assert "Access-Control-Allow-Origin" not in answer.headers
    # Flower answers under each name, but a browser has its login for the right one only.
    for path in ("/", "/workers", "/api/workers", "/api/tasks"):
        answer = requests.get(stack.flower_url + path, headers=foreign, timeout=10)
        assert answer.status_code == 401, path
        assert "Access-Control-Allow-Origin" not in answer.headers


def test_web_gives_no_permission_to_pages_of_other_sites(stack: RunningStack) -> None:
    foreign = {"Origin": "http://evil.example", "Access-Control-Request-Method": "GET"}
    for method in ("GET", "OPTIONS"):
        url = web_of(stack) + "/api/v1/whoami"
        answer = requests.request(method, url, headers=foreign, timeout=10)
        assert answer.status_code == 401
        assert not [name for name in answer.headers if name.startswith("Access-Control-")]


def test_half_sent_requests_do_not_occupy_web(stack: RunningStack) -> None:
    address = urlsplit(web_of(stack))
    with ExitStack() as ends:
        sockets = [
            ends.enter_context(
                socket.create_connection((address.hostname, address.port), timeout=120)
            )
            for _ in range(300)
        ]
        for half in sockets:
            half.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n")
        assert requests.get(web_of(stack) + "/healthz", timeout=30).status_code == 200
        assert {half.recv(100) for half in sockets} == {b""}


def test_flower_shows_workers_and_attempts_by_their_events(
    stack: RunningStack, session: Session
) -> None:
    _, task = run_to_end(session, job("seen"))

    def shown(path: str, text: str) -> bool:
        answer = requests.get(stack.flower_url + path, auth=stack.flower_login, timeout=30)
        return answer.ok and text in answer.text

    wait_until(lambda: shown("/workers", "cell@cell-1"), seconds=30, what="the cell is shown")
    wait_until(lambda: shown("/workers", "placement@"), seconds=30, what="placement is shown")
    uid = str(task["attempt_uid"])
    wait_until(lambda: shown(f"/api/task/info/{uid}", "seen"), seconds=30, what="it is shown")
