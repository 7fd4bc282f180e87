"""The parts of the embedded stack that need no stack: options, configuration, waiting."""

import configparser
import os
import shlex
import socket
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.config.stack import launch, supervisor
from controlplane.config.stack.exits import Exits
from controlplane.config.stack.failure import StackError
from controlplane.config.stack.options import choose_ports, read_options
from controlplane.config.stack.parts import credentials, host, ports
from controlplane.config.stack.parts.home import StackHome, shell_lines, write_private
from controlplane.config.stack.processes import (
    PROJECT,
    Process,
    inherited_environment,
    list_processes,
)
from controlplane.config.stack.up import welcome
from tests.harness.deployed import make_plan
from workers.config import parse_capacity


def test_options_have_the_documented_defaults() -> None:
    options = read_options({})
    assert (options.web_port, options.flower_port, options.cells) == (8000, 5555, 2)
    assert (options.engine, options.driver) == ("docker", "docker")
    assert options.home == Path(".cellrun").absolute()


def test_a_log_of_the_stack_has_no_credentials(tmp_path: Path) -> None:
    home = StackHome(tmp_path)
    secrets = credentials.load_or_create(home)
    plan = make_plan(tmp_path, secrets)
    values = (secrets.admin_password, secrets.flower_password, secrets.submitter_token)
    text = welcome(plan, "docker", with_secrets=True)
    assert [value for value in values if value not in text] == []
    text = welcome(plan, "docker", with_secrets=False)
    assert [value for value in (*values, secrets.operator_token) if value in text] == []
    assert str(tmp_path / "credentials.json") in text
    assert text.endswith("Ctrl-C stops the stack.\n")


def test_every_wrong_option_is_refused_by_name() -> None:
    with pytest.raises(StackError) as refused:
        read_options({"ENGINE": "rkt", "CELLS": "two", "WEB_PORT": "70000", "CELLRUN_CELS": "1"})
    for name in ("ENGINE", "CELLS", "WEB_PORT", "CELLRUN_CELS: unknown setting"):
        assert name in str(refused.value)


def test_settings_are_passed_on_except_those_of_the_stack() -> None:
    options = read_options(
        {"CELLRUN_LEASE_SECONDS": "3", "CELLRUN_CELL_LABELS": "a=b", "CELLRUN_SECRET_KEY": "x"}
    )
    assert dict(options.overrides) == {"CELLRUN_LEASE_SECONDS": "3", "CELLRUN_CELL_LABELS": "a=b"}


def test_outside_services_are_used_but_not_those_of_another_stack() -> None:
    services = {"DATABASE_URL": "postgresql://db/x", "CELERY_BROKER_URL": "redis://broker/0"}
    options = read_options(services)
    assert (options.database_url, options.broker_url) == tuple(services.values())
    of_a_stack = {**services, "CELLRUN_URL": "http://x", "CELLRUN_OPERATOR_TOKEN": "t"}
    options = read_options(of_a_stack)
    assert (options.database_url, options.broker_url) == ("", "")


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(StackError, match=f"port {port} is in use.*WEB_PORT"):
            choose_ports(read_options({"WEB_PORT": str(port)}))


def test_free_ports_differ_and_are_below_the_ephemeral_range() -> None:
    taken: set[int] = set()
    found = [ports.free_port(taken=taken) for _ in range(20)]
    assert len(set(found)) == 20
    assert max(found) < 32768


def test_credentials_are_generated_once_with_private_permissions(tmp_path: Path) -> None:
    home = StackHome(tmp_path / "home")
    home.create()
    first = credentials.load_or_create(home)
    assert credentials.load_or_create(home) == first
    for name in ("credentials.json", "secret-key"):
        assert stat.S_IMODE((home.root / name).stat().st_mode) == 0o600
    assert first.admin_password not in repr(first)


def test_unreadable_credentials_are_reported_and_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "credentials.json").write_text("{")
    with pytest.raises(StackError, match=r"credentials\.json cannot be read"):
        credentials.load_or_create(StackHome(tmp_path))
    assert (tmp_path / "credentials.json").read_text() == "{"


def test_second_stack_in_one_home_is_refused(tmp_path: Path) -> None:
    first, second = StackHome(tmp_path), StackHome(tmp_path)
    assert not first.is_held()
    with first.hold():
        assert second.is_held()
        with pytest.raises(StackError, match="a stack already runs"):
            second.hold()
    assert not second.is_held()


def test_shell_lines_survive_a_shell() -> None:
    lines = shell_lines({"CELLRUN_TOKEN": "it's $HOME"})
    done = subprocess.run(
        ["sh", "-c", f'{lines}\nprintf %s "$CELLRUN_TOKEN"'], capture_output=True, check=True
    )
    assert done.stdout.decode() == "it's $HOME"


def test_private_files_are_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "env"
    write_private(path, "one")
    write_private(path, "two")
    assert path.read_text() == "two"
    assert os.listdir(tmp_path) == ["env"]


def test_supervisor_configuration_preserves_commands_and_environment(tmp_path: Path) -> None:
    process = Process(
        "web", "control", ["sh", "-c", "echo 100% 'a b'"], ("broker",), {"CELLRUN_X": "50%, a;b"}
    )
    home = StackHome(tmp_path)
    home.create()
    path = supervisor.write_configuration(home, [process])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    parser = configparser.RawConfigParser()
    parser.read(path)
    program = dict(parser["program:web"])
    words = shlex.split(program["command"].replace("%%", "%"))
    assert words[-3:] == ["sh", "-c", "echo 100% 'a b'"]
    assert program["environment"] == 'CELLRUN_X="50%%, a;b"'
    assert program["autorestart"] == "true"


def test_share_of_host_has_the_cell_capacity_format(tmp_path: Path) -> None:
    parts = dict(part.split("=") for part in host.share_of_host(2, tmp_path).split(","))
    assert set(parts) == {"cpu", "memory", "disk", "gpu"}
    assert int(parts["cpu"].removesuffix("m")) >= 500
    assert parts["memory"].endswith("Mi")


@pytest.mark.parametrize("cores", [1, 2, 3, 4])
@pytest.mark.parametrize("cells", range(1, 9))
def test_cells_read_their_share_and_have_no_more_cores_than_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cells: int, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    millis = parse_capacity(host.share_of_host(cells, tmp_path))["cpu_millis"]
    # Half a core is the least, so that the examples fit on each cell.
    assert millis == 500 or 1000 * cores - cells < millis * cells <= 1000 * cores
    assert millis >= 500


def test_process_that_refuses_its_settings_ends_the_start_with_its_message(tmp_path: Path) -> None:
    home, printed = StackHome(tmp_path), list[str]()
    home.create()
    (home.logs / "cell-1.log").write_text(
        "cell-1: web is ready\nsettings refused: CELLRUN_CELL_NAME is not set\n"
    )
    exits = Exits(home)
    # A process that was killed, or that failed, is restarted and may succeed.
    exits.read(
        [
            "2026-11-28 INFO exited: web (terminated by SIGKILL; not expected)\n",
            "2026-11-28 INFO exited: inbox (exit status 1; not expected)\n",
        ],
        printed.append,
    )
    exits.check()
    exits.read(["2026-11-28 INFO exited: cell-1 (exit status 2; not expected)\n"], printed.append)
    with pytest.raises(StackError) as refused:
        exits.check()
    assert str(refused.value).splitlines() == [
        "cell-1 refuses to start (exit status 2): settings refused: CELLRUN_CELL_NAME is not set",
        f"Its log: {home.logs / 'cell-1.log'}",
    ]
    assert exits.names == ["web", "inbox", "cell-1"]
    assert len(printed) == 3


def test_launch_waits_for_its_needs_and_keeps_its_process_id(tmp_path: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))  # not listening yet: connections are refused
        port = server.getsockname()[1]
        launcher = [sys.executable, "-m", "controlplane.config.stack.launch"]
        options = ["--process", "web", "--run", str(tmp_path), "--needs", "broker,preparation"]
        process = subprocess.Popen(
            [*launcher, *options, "--", "sh", "-c", "echo became $$"],
            cwd=PROJECT,
            env={**os.environ, "CELERY_BROKER_URL": f"redis://127.0.0.1:{port}/0"},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline().startswith("web waits for broker: 127.0.0.1:")
        assert (tmp_path / "web.pid").read_text() == f"{process.pid}\n"
        server.listen()
        assert process.stdout.readline() == "web: broker is ready\n"
        assert process.stdout.readline() == (
            "web waits for preparation: migrations, accounts and cells\n"
        )
        (tmp_path / "prepared").touch()
        rest = process.communicate(timeout=20)[0]
    assert rest.splitlines()[-1] == f"became {process.pid}"
    assert process.returncode == 0


STORE_VARIABLES = {
    "AWS_SECRET_ACCESS_KEY": "of-the-shell",
    "AWS_SESSION_TOKEN_FILE": "of-the-shell",
    "AZURE_STORAGE_ACCOUNT_KEY": "of-the-shell",
    "GOOGLE_SERVICE_ACCOUNT": "of-the-shell",
}


def test_only_processes_that_reach_a_store_get_the_credentials_of_the_shell(
    tmp_path: Path,
) -> None:
    home = StackHome(tmp_path)
    home.create()
    plan = make_plan(tmp_path, credentials.load_or_create(home))
    plan = replace(plan, redis_port=6379)
    processes = list_processes(plan)
    path = supervisor.write_configuration(
        home,
        [replace(process, command=["sh", "-c", "env"], needs=()) for process in processes],
    )
    parser = configparser.RawConfigParser()
    parser.read(path)
    got = set()
    for process in processes:
        command = shlex.split(parser[f"program:{process.name}"]["command"].replace("%%", "%"))
        done = subprocess.run(
            command,
            cwd=PROJECT,
            env={**os.environ, **STORE_VARIABLES, "SHELL_VARIABLE": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        assert "SHELL_VARIABLE=1" in done.stdout
        found = done.stdout.count("=of-the-shell")
        assert found in (0, len(STORE_VARIABLES))
        if found:
            got.add(process.name)
    assert got == {"web", "convergence", "cell-1"}
    assert "of-the-shell" not in path.read_text()


def test_every_need_can_be_waited_for() -> None:
    assert set(launch.NEEDS) == {"database", "broker", "preparation", "web"}


@pytest.mark.parametrize(
    ("given", "expected"),
    [(None, str(PROJECT)), ("", str(PROJECT)), ("/plugins:/more", f"{PROJECT}:/plugins:/more")],
)
def test_packages_of_the_caller_follow_those_of_the_project(
    monkeypatch: pytest.MonkeyPatch, given: str | None, expected: str
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if given is not None:
        monkeypatch.setenv("PYTHONPATH", given)
    assert inherited_environment()["PYTHONPATH"] == expected
