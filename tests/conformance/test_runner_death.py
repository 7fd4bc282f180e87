"""The cell is killed -9 while its runner begins a job elsewhere: whenever that is, there is one."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import urllib.error
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from examples.runners.cellrun_http_job.runner import HttpJob, send_request
from tests.architecture.source import ROOT
from tests.conformance.kit import until
from tests.conformance.outside import Outside
from tests.conformance.runners import RunnerKit, runner_kit
from workers.attempt.events import Launch
from workers.attempt.outcome import STOPPED

CELL = textwrap.dedent(
    """
    import sys, time
    from pathlib import Path
    from examples.runners.cellrun_http_job.runner import HttpJob
    from controlplane.contract.messages.orders import GroupSpec, RunAttempt
    from workers.attempt.events import Launch
    from workers.config import CellConfig
    from workers.drivers.process.engine import ProcessEngine
    from workers.drivers.registry import make_pipeline
    from workers.drivers.runner.driver import InstalledRunners

    home, url, uid = sys.argv[1:4]
    config = CellConfig(
        name="cell-1", key=b"k" * 32, home=Path(home), broker_url="", control_url=url,
        installation="conformance", capacity={}, driver="process",
    )
    engine = ProcessEngine(home=config.home, max_log_bytes=config.max_log_bytes)
    offered = InstalledRunners({"http_job": HttpJob()})
    driver = make_pipeline(engine, config, print, (0.05, 0.1), offered)
    spec = GroupSpec(1, 7, "suite", "main", 1, task_type="http_job", command=("do", "it"))
    driver.start(Launch(RunAttempt(uid, 1, 11, 0, 1, 0.0), spec, {"JOB_SERVICE": url}))
    if "stop" in sys.argv:
        sys.stdin.readline()
        driver.stop(uid, grace_seconds=300, force=False)
    time.sleep(300)
    """
)


@pytest.fixture
def outside() -> Iterator[Outside]:
    with Outside() as outside:
        yield outside


@pytest.fixture
def kit(tmp_path: Path, outside: Outside) -> Iterator[RunnerKit]:
    with runner_kit(tmp_path, outside, http_job=HttpJob()) as kit:
        yield kit


def cell_of(kit: RunnerKit, uid: str, *words: str) -> "subprocess.Popen[bytes]":
    """A process that starts the attempt."""
    command = [sys.executable, "-c", CELL, str(kit.home), kit.outside.url, uid, *words]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.PIPE)


def launch_of(kit: RunnerKit, uid: str) -> Launch:
    launch = kit.launch("do", "it", uid=uid, task_type="http_job")
    return Launch(launch.run, launch.spec, {"JOB_SERVICE": kit.outside.url})


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_external_job_is_started_once_though_the_cell_is_killed(
    kit: RunnerKit, outside: Outside, method: str
) -> None:
    uid = f"killed-at-{method.lower()}"
    outside.holds = method
    with cell_of(kit, uid) as cell:
        until(outside.held.is_set)
        cell.send_signal(signal.SIGKILL)
    assert outside.count_requests("PUT", uid) == (1 if method == "PUT" else 0)
    outside.holds = ""
    kit.driver.adopt(launch_of(kit, uid))
    kit.events.started(uid)
    outside.finish(uid, state="done", result="7")
    assert kit.events.ended(uid).result == "7"
    assert (outside.jobs[uid].begun, outside.count_requests("PUT", uid)) == (1, 1)


def test_token_is_not_sent_to_a_redirect_target() -> None:
    tokens: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            tokens.append(self.headers["Authorization"])
            self.send_response(302)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        task = SimpleNamespace(env={"JOB_SERVICE": f"http://127.0.0.1:{server.server_port}"})
        secrets = {"job-service-token": b"hush"}
        context: Any = SimpleNamespace(task=task, state={"key": "k"}, secrets=secrets)
        with pytest.raises(urllib.error.HTTPError, match="302"):
            send_request(context, "GET")
        server.shutdown()
    assert tokens == ["Bearer hush"]


def test_stop_interrupted_by_a_kill_is_completed_by_the_successor(
    kit: RunnerKit, outside: Outside
) -> None:
    uid = "killed-at-delete"
    outside.cancels_at_once = False
    with cell_of(kit, uid, "stop") as cell:
        until(lambda: uid in outside.jobs)
        assert cell.stdin is not None
        cell.stdin.write(b"now\n")
        cell.stdin.flush()
        until(lambda: outside.count_requests("DELETE", uid))
        cell.send_signal(signal.SIGKILL)
    outside.cancels_at_once = True
    kit.driver.adopt(launch_of(kit, uid))
    assert kit.events.ended(uid).reason == STOPPED
    assert outside.jobs[uid].state == "cancelled"
