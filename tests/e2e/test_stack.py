"""The stack of `make up`: whole or not at all, kept alive, and gone without a trace."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from controlplane.contract.secret_files import FILE_NAMES
from tests.architecture.source import ROOT
from tests.e2e.stack import RunningStack, is_running, open_folder, remnants, wait_until

pytestmark = pytest.mark.stack

CONTROL = ("web", "placement", "convergence", "inbox", "callbacks", "beat", "flower")
EVERY_PROCESS = {*CONTROL, "postgres", "redis", "cell-1"}


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    with open_folder() as folder:
        with RunningStack(folder / "home", cells=1, engine="process") as running:
            yield running
        assert remnants(running.home) == []


def test_every_expected_process_runs_and_its_pid_is_published(stack: RunningStack) -> None:
    assert set(stack.processes()) >= EVERY_PROCESS
    assert all(is_running(pid) for pid in stack.processes().values())


def test_environment_file_with_addresses_and_tokens_is_private(stack: RunningStack) -> None:
    file = stack.home / "run" / "env"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert set(stack.environment) == {
        "CELLRUN_URL",
        "CELLRUN_TOKEN",
        "CELLRUN_OPERATOR_TOKEN",
        "CELLRUN_ADMIN_USER",
        "CELLRUN_ADMIN_PASSWORD",
        "CELLRUN_REDIS_USERS",
        "CELERY_BROKER_URL",
        "DATABASE_URL",
        "FLOWER_BASIC_AUTH",
    }
    with urllib.request.urlopen(stack.environment["CELLRUN_URL"] + "/readyz", timeout=5) as answer:
        assert answer.status == 200


def test_no_secret_is_on_a_command_line_or_in_a_log(stack: RunningStack) -> None:
    secrets = [
        stack.environment["CELLRUN_TOKEN"],
        stack.environment["CELLRUN_OPERATOR_TOKEN"],
        (stack.home / "secret-key").read_text().strip(),
        stack.environment["DATABASE_URL"].split(":")[2].split("@")[0],
        stack.environment["CELERY_BROKER_URL"].split(":")[2].split("@")[0],
        stack.environment["FLOWER_BASIC_AUTH"].split(":")[1],
    ]
    shown = {
        str(pid): Path(f"/proc/{pid}/cmdline").read_text() for pid in stack.processes().values()
    }
    shown |= {path.name: path.read_text() for path in (stack.home / "log").iterdir()}
    assert [name for name, text in shown.items() if any(secret in text for secret in secrets)] == []


@pytest.mark.parametrize("name", [*CONTROL, "cell-1"])
def test_environment_of_a_process_holds_only_its_secrets(stack: RunningStack, name: str) -> None:
    """By value, so that a secret under another name, or in a file that it names, is found."""
    secrets = {
        "secret key": (stack.home / "secret-key").read_text().strip(),
        "database password": urlsplit(stack.environment["DATABASE_URL"]).password,
        "broker password": urlsplit(stack.environment["CELERY_BROKER_URL"]).password,
        "login of Flower": stack.environment["FLOWER_BASIC_AUTH"].split(":")[1],
        "operator's token": stack.environment["CELLRUN_OPERATOR_TOKEN"],
        "submitter's token": stack.environment["CELLRUN_TOKEN"],
        "admin's password": stack.environment["CELLRUN_ADMIN_PASSWORD"],
    }
    usual = {"secret key", "database password", "broker password"}
    expected = {
        "beat": {"broker password"},
        "flower": {"broker password", "login of Flower"},
        "cell-1": set(),  # its logins at Redis follow from its own key
    }.get(name, usual)
    environment = stack.environment_of(name)
    text = "\n".join(environment.values())
    assert {label for label, secret in secrets.items() if secret and secret in text} == expected
    named = [
        word for word in environment if word in FILE_NAMES or word.startswith("CELLRUN_CELL_KEY")
    ]
    assert named == (["CELLRUN_CELL_KEY_FILE"] if name == "cell-1" else [])
    assert all(secrets.values())


@pytest.mark.parametrize("name", ["beat", "flower"])
def test_beat_and_flower_have_no_connection_to_the_database(stack: RunningStack, name: str) -> None:
    with psycopg.connect(stack.environment["DATABASE_URL"]) as connection:
        rows = connection.execute("SELECT application_name FROM pg_stat_activity").fetchall()
    assert f"cellrun-{name}" not in {row[0] for row in rows}


def test_manage_py_connects_to_the_running_stack(stack: RunningStack) -> None:
    plain = {"PATH": os.environ["PATH"], "CELLRUN_HOME": str(stack.home)}
    done = subprocess.run(
        [sys.executable, "manage.py", "migrate", "--check"],
        cwd=ROOT,
        env=plain,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_second_stack_in_the_same_folder_is_refused(stack: RunningStack) -> None:
    refused = run_up(stack.home)
    assert refused.returncode == 1
    assert "a stack already runs" in refused.stderr
    assert all(is_running(pid) for pid in stack.processes().values())


@pytest.mark.parametrize("name", sorted(EVERY_PROCESS))
def test_killed_process_is_restarted(stack: RunningStack, name: str) -> None:
    killed = stack.kill(name)
    wait_until(
        lambda: stack.pid_of(name) != killed and is_running(stack.pid_of(name)),
        seconds=30,
        what=f"{name} runs again",
    )


def find_faults(stack: RunningStack) -> dict[str, str]:
    """Return the checks of /readyz that fail."""
    try:
        with urllib.request.urlopen(stack.environment["CELLRUN_URL"] + "/readyz", timeout=5):
            return {}
    except urllib.error.HTTPError as answer:
        checks = json.load(answer)["checks"]
        return {name: text for name, text in checks.items() if text != "ok"}
    except OSError as error:
        return {"web": str(error)}


def test_stack_is_ready_after_all_restarts(stack: RunningStack) -> None:
    try:
        wait_until(lambda: not find_faults(stack), seconds=60, what="/readyz answers 200")
    except AssertionError as fault:
        raise AssertionError(f"not ready: {find_faults(stack)}") from fault


def test_killed_supervisor_or_stack_leaves_nothing_and_can_start_again() -> None:
    with open_folder() as folder:
        stack = RunningStack(folder / "home", cells=1, engine="process")
        for victims in (["supervisord"], ["stack"], ["supervisord", "stack"]):
            stack.start()
            for pid in [stack.pid_of(name) for name in victims]:
                os.kill(pid, signal.SIGKILL)
            try:
                wait_until(lambda: remnants(stack.home) == [], seconds=60, what="all are gone")
            except AssertionError as fault:
                raise AssertionError(f"{victims} killed: {remnants(stack.home)}") from fault
        stack.start()
        pids = stack.processes().values()
        assert stack.stop(signal.SIGTERM) == 0
        assert not any(is_running(pid) for pid in pids)
        # What was only true while it ran is forgotten.
        assert [path.name for path in (stack.home / "run").iterdir()] == ["lock"]
        assert remnants(stack.home) == []


def test_port_in_use_fails_the_start_with_a_message(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = run_up(tmp_path / "home", WEB_PORT=str(port))
    assert refused.returncode == 1
    assert f"port {port} is in use: choose another with WEB_PORT" in refused.stderr
    assert remnants(tmp_path / "home") == []


def test_wrong_settings_are_refused_by_name_before_anything_starts(tmp_path: Path) -> None:
    refused = run_up(tmp_path / "home", CELLRUN_LEASE_SECONDS="soon")
    assert refused.returncode == 1
    assert "CELLRUN_LEASE_SECONDS: expected a number of seconds" in refused.stderr
    assert not (tmp_path / "home" / "postgres-18").exists()


def test_settings_that_only_a_cell_reads_end_the_start_with_its_message(tmp_path: Path) -> None:
    home = tmp_path / "home"
    refused = run_up(home, timeout=180, CELLS="1", CELLRUN_CELL_CAPACITY="cpu=0.666667")
    assert refused.returncode == 1
    fault = "settings refused: CELLRUN_CELL_CAPACITY: cpu=0.666667: cores are expected"
    assert f"cell-1 refuses to start (exit status 2): {fault}" in refused.stderr
    assert remnants(home) == []


def run_up(home: Path, *, timeout: float = 60, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run `up` where it is expected to be refused."""
    plain = {"PATH": os.environ["PATH"], "CELLRUN_HOME": str(home), "ENGINE": "none"}
    return subprocess.run(
        [sys.executable, "-m", "controlplane.config.stack", "up"],
        cwd=ROOT,
        env={**plain, "WEB_PORT": "0", "FLOWER_PORT": "0", **env},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
