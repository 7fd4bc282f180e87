"""Thousands of futures over one stream while web is killed and Redis is emptied: each resolves."""

import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from benchmarks.stand import Stand, Wanted, standing
from cellrun import Client, Command, CommandResult, Executor, Job, JobFailed, TaskFailed
from cellrun.settings import ClientSettings
from tests.architecture.source import ROOT
from tests.e2e.stack import check_invariants, remnants, wait_until

pytestmark = pytest.mark.stack

FUTURES = 4_000
SMALL = {"cpu": 0.01, "memory": "16Mi", "disk": "1Mi"}


def settings_of(stand: Stand) -> ClientSettings:
    return ClientSettings(stand.plan.url, stand.plan.credentials.submitter_token)


@pytest.fixture(scope="module")
def fleet() -> Iterator[Stand]:
    with standing(Wanted(cells=20)) as stand:
        yield stand
        check_invariants(stand.plan.control_environment("command"))
    assert remnants(stand.plan.home.root.parent) == []


@pytest.fixture(scope="module")
def cell() -> Iterator[Stand]:
    """One real cell, which runs plain processes."""
    with standing(Wanted(cells=1, driver="process")) as stand:
        yield stand
        check_invariants(stand.plan.control_environment("command"))


def test_every_future_resolves_once_although_web_is_killed_and_redis_is_emptied(
    fleet: Stand,
) -> None:
    resolved: Counter[int] = Counter()
    lock = threading.Lock()

    def count(future: Future[Any]) -> None:
        with lock:
            resolved[id(future)] += 1

    def is_past(share: float) -> bool:
        return len(resolved) >= FUTURES * share

    with Executor(settings_of(fleet), resources=SMALL, tasks_per_job=200) as executor:
        futures = [executor.submit(["sleep", "1"]) for _ in range(FUTURES // 2)]
        for future in futures:
            future.add_done_callback(count)
        wait_until(lambda: is_past(0.05), seconds=60, what="some futures are resolved")
        fleet.kill("web")
        with redis.Redis.from_url(fleet.plan.broker_url) as broker:
            broker.flushall()
        for _ in range(FUTURES // 2):
            futures.append(executor.submit(["noop"]))
            futures[-1].add_done_callback(count)
        fleet.start_again("web")
    assert {future.result(0).exit_code for future in futures} == {0}
    assert len({future.address for future in futures}) == FUTURES
    assert set(resolved.values()) == {1}
    assert len(resolved) == FUTURES


def test_failed_command_has_its_exit_code_and_the_command_to_show_its_log(fleet: Stand) -> None:
    with Executor(settings_of(fleet), resources=SMALL) as executor:
        bad, good = executor.submit(["exit", "3"]), executor.submit(["noop"])
        fault = bad.exception(60)
        assert good.result(60).exit_code == 0
    assert isinstance(fault, TaskFailed)
    assert (fault.exit_code, fault.state) == (3, "FAILED")
    assert fault.log_command == f"cellrun logs {bad.address}"


def test_cancelled_future_of_a_running_task_ends_it_on_the_server(fleet: Stand) -> None:
    with Executor(settings_of(fleet), resources=SMALL, tasks_per_job=1) as executor:
        one = executor.submit(["sleep", "600"])
        wait_until(one.running, seconds=60, what="it runs")
        assert one.cancel()
        with pytest.raises(CancelledError):
            one.result(0)
    with Client(settings_of(fleet)) as client:
        job = client.submit(Job(name="next", command=["noop"], resources=SMALL)).result(60)
    assert job["state"] == "SUCCEEDED"
    statement = "SELECT count(*) FROM controlplane_job WHERE finished_at IS NULL"
    with fleet.connect() as connection:
        wait_until(
            lambda: connection.execute(statement).fetchone() == (0,), seconds=30, what="it ended"
        )


def test_interrupt_leaves_no_task(fleet: Stand) -> None:
    def interrupted() -> Future[Any]:
        with suppress(KeyboardInterrupt), Executor(settings_of(fleet), resources=SMALL) as executor:
            one = executor.submit(["sleep", "600"])
            wait_until(lambda: one.job_id is not None, seconds=60, what="it is submitted")
            raise KeyboardInterrupt
        return one

    one: Any = interrupted()
    assert one.cancelled()
    statement = "SELECT count(*) FROM controlplane_job WHERE id = %s AND finished_at IS NULL"
    with fleet.connect() as connection:
        wait_until(
            lambda: connection.execute(statement, [one.job_id]).fetchone() == (0,),
            seconds=30,
            what="it ended",
        )


def test_map_is_ordered_and_has_results_of_commands(fleet: Stand) -> None:
    commands = [Command(["result", str(number)], result=True) for number in range(30)]
    with Executor(settings_of(fleet), resources=SMALL) as executor:
        found = [executor.submit(command) for command in commands]
        assert [future.result(60).text for future in found] == [str(n) for n in range(30)]
        results: list[CommandResult] = list(
            executor.map(Command, [["noop"]] * 50, timeout=60, buffersize=7)
        )
    assert len(results) == 50


def test_failed_job_is_an_exception_of_its_future(fleet: Stand) -> None:
    with Client(settings_of(fleet)) as client:
        future = client.submit(Job(name="bad", command=["exit", "1"], resources=SMALL))
        with pytest.raises(JobFailed, match=r"--failed"):
            future.result(60)


def test_functions_return_and_raise_and_output_is_read_when_needed(cell: Stand) -> None:
    offset = 10

    def work(number: int) -> Any:
        if number == 3:
            raise ValueError(f"bad {number}")
        return "x" * 50_000 if number == 4 else number + offset

    resources = {"cpu": 0.1, "memory": "128Mi"}
    with Executor(settings_of(cell), python=sys.executable, resources=resources) as executor:
        futures = [executor.submit(work, number) for number in range(5)]
        echo = executor.submit(["echo", "some output"])
        assert [future.result(120) for future in futures[:3]] == [10, 11, 12]
        with pytest.raises(ValueError, match="bad 3") as caught:
            futures[3].result(120)
        assert "in work" in str(caught.value.__cause__)
        assert futures[4].result(120) == "x" * 50_000
        result = echo.result(120)
        wait_until(lambda: result.stdout() == "some output\n", seconds=30, what="its output")


def test_the_examples_of_the_page_run_as_written(cell: Stand, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    access = settings_of(cell)
    environment = {
        **os.environ,
        "CELLRUN_URL": access.url,
        "CELLRUN_TOKEN": access.token,
        "PYTHONPATH": str(ROOT),
    }
    shown = []
    for number, block in enumerate(blocks):
        program = tmp_path / f"example_{number}.py"
        program.write_text(block)
        done = subprocess.run(
            [sys.executable, str(program)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        shown.append(done.stdout.splitlines())
    assert shown[0][0] == "0"
    assert all(re.fullmatch(r"\d+/main\.\d", line) for line in shown[0][1:])
    assert shown[1:] == [["49", "[0, 1, 4]"], ["SUCCEEDED"], ["3"]]
