"""What deploy/ starts is what the stack starts: the same processes by the same command lines."""

import ast
import importlib.metadata
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.config.env import InvalidSettings, load_settings
from controlplane.config.process_settings import READ_BY
from controlplane.contract.secret_files import SECRET_SETTINGS, STORE_CREDENTIALS
from controlplane.contract.settings_names import unknown_names
from tests.architecture.source import ROOT, sources
from tests.harness.deployed import (
    CELL,
    DEPLOY,
    as_installed,
    list_supervised,
    read_compose,
    read_example,
    read_units,
)

NAMES = ("web", "placement", "convergence", "inbox", "callbacks", "beat", "flower", CELL)


def test_every_process_of_the_stack_has_a_unit_and_a_compose_service(tmp_path: Path) -> None:
    assert set(list_supervised(tmp_path)) == set(NAMES)
    assert set(read_units()) == set(NAMES)
    assert set(read_compose()["services"]) == {"prepare", *NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_a_unit_runs_the_command_line_of_the_stack(name: str, tmp_path: Path) -> None:
    expected = as_installed(list_supervised(tmp_path)[name].command, tmp_path)
    assert read_units()[name].command == expected


@pytest.mark.parametrize("name", NAMES)
def test_compose_service_runs_the_command_line_on_all_interfaces(name: str, tmp_path: Path) -> None:
    expected = as_installed(list_supervised(tmp_path)[name].command, tmp_path)
    found = read_compose()["services"][name]["command"]
    assert found == [word.replace("127.0.0.1", "0.0.0.0") for word in expected]


def test_prepare_logs_no_credentials_and_alone_mounts_the_folder_of_their_file() -> None:
    services = read_compose()["services"]
    script = services["prepare"]["command"][-1]
    bootstrap = next(part for part in script.split(";") if "bootstrap" in part)
    option, file = bootstrap.split()[-2:]
    assert option == "--credentials"
    folder = str(Path(file).parent)
    mounting = {
        name
        for name, service in services.items()
        for volume in service.get("volumes", ())
        if volume.split(":")[1] == folder
    }
    assert mounting == {"prepare"}
    assert not any(folder.startswith(f"{other}/") for other in ("/var/lib/cellrun", "/tmp"))


def test_ports_are_published_on_the_loopback_only() -> None:
    services = read_compose()["services"].values()
    published = [port for service in services for port in service.get("ports", ())]
    assert len(published) == 2
    assert all(port.startswith("127.0.0.1:") for port in published)


@pytest.mark.parametrize("name", NAMES)
def test_unit_sets_the_environment_and_stop_timeout_of_the_stack(name: str, tmp_path: Path) -> None:
    """Every setting that the stack decides has its place, and as long a stop."""
    process, unit = list_supervised(tmp_path)[name], read_units()[name]
    example = read_example(Path(unit.environment_file).name + ".example")
    optional = {
        "CELLRUN_CELL_CAPACITY",  # the default is the host's
        "CELLRUN_CELL_EVACUATE",  # an installed cell leaves its containers to its successor
        "CELLRUN_FLOWER_URL",
        "DJANGO_SETTINGS_MODULE",  # the programs set it themselves
    }
    if name in ("beat", "flower"):
        optional.add("CELLRUN_HOME")  # neither keeps anything there
    assert process.environment.keys() - optional <= example.keys() | unit.environment.keys()
    assert int(unit.settings["TimeoutStopSec"]) == process.stop_seconds
    if name == CELL:
        assert unit.settings["KillMode"] == "process"
        assert "DATABASE_URL" not in example
    else:
        assert unit.environment["CELLRUN_PROCESS"] == name
        assert read_compose()["services"][name]["environment"]["CELLRUN_PROCESS"] == name


@pytest.mark.parametrize("name", NAMES)
def test_processes_may_open_more_files_than_web_accepts_connections(name: str) -> None:
    """The usual soft limit is 1,024."""
    command = read_units()["web"].command
    connections = int(command[command.index("--limit-concurrency") + 1])
    assert connections == 4_000
    assert int(read_units()[name].settings["LimitNOFILE"]) > 2 * connections
    assert read_compose()["services"][name]["ulimits"]["nofile"] > 2 * connections


def test_the_examples_hold_only_settings_that_exist() -> None:
    control, cell = read_example("control.env.example"), read_example("cell.env.example")
    assert unknown_names([*control, *cell]) == []
    settings = load_settings({**control, "CELLRUN_SECRET_KEY": "k" * 48})
    assert "cellrun.example.com" in settings.allowed_hosts
    commented = [
        name
        for file in ("control.env.example", "store.env.example", "cell.env.example")
        for name in re.findall(r"^#([A-Z_]+)=", (DEPLOY / file).read_text(), re.MULTILINE)
    ]
    assert unknown_names(commented) == []


def test_example_settings_contain_no_flower_login() -> None:
    control = read_example("flower.env.example")
    with pytest.raises(InvalidSettings, match="FLOWER_BASIC_AUTH"):
        load_settings({**control, "CELLRUN_PROCESS": "flower"})


@pytest.mark.parametrize("name", NAMES)
def test_unit_and_compose_service_read_a_file_with_their_own_secrets_only(name: str) -> None:
    file = {"beat": "beat.env", "flower": "flower.env", CELL: "cell.env"}.get(name, "control.env")
    secrets = {
        "control.env": {"CELERY_BROKER_URL", "CELLRUN_SECRET_KEY", "DATABASE_URL"},
        "beat.env": {"CELERY_BROKER_URL"},
        "flower.env": {"CELERY_BROKER_URL", "FLOWER_BASIC_AUTH"},
        "cell.env": {"CELERY_BROKER_URL"},
    }[file]
    assert read_example(f"{file}.example").keys() & set(SECRET_SETTINGS) == secrets
    assert read_units()[name].environment_file == f"/etc/cellrun/{file}"
    assert read_compose()["services"][name]["env_file"][0] == file


def test_only_processes_that_reach_the_store_read_the_file_of_its_keys() -> None:
    reading = {name for name in READ_BY if not READ_BY[name].isdisjoint(STORE_CREDENTIALS)}
    units, services = read_units(), read_compose()["services"]
    file = "/etc/cellrun/store.env"
    assert {name for name in NAMES if file in units[name].environment_files} == reading & {*NAMES}
    found = {name for name in services if "store.env" in services[name]["env_file"]}
    assert found == reading & services.keys()
    assert not any(
        name in (DEPLOY / "control.env.example").read_text() for name in STORE_CREDENTIALS
    )


@pytest.mark.parametrize("name", ["beat", "flower"])
def test_beat_and_flower_share_neither_user_nor_folder_with_the_others(name: str) -> None:
    """Processes of one user can read each other's environment."""
    settings = read_units()[name].settings
    assert settings["DynamicUser"] == "true"
    assert "User" not in settings
    assert settings.get("StateDirectory") == {"beat": "cellrun-beat"}.get(name)
    assert "volumes" not in read_compose()["services"][name]


WITH_FILES = ("web", "convergence")
"""Processes that store, read and delete files of the control plane."""


@pytest.mark.parametrize("name", ["web", "placement", "convergence", "inbox", "callbacks"])
def test_only_processes_that_use_the_store_can_write_to_its_folder(name: str) -> None:
    expected = "cellrun" if name in WITH_FILES else None
    assert read_units()[name].settings.get("StateDirectory") == expected
    assert "ReadWritePaths" not in read_units()[name].settings
    volumes = read_compose()["services"][name].get("volumes", [])
    assert volumes == (["state:/var/lib/cellrun"] if name in WITH_FILES else [])


def test_cell_of_compose_mounts_only_what_the_engine_needs_from_the_host() -> None:
    """Files of secrets are in the host's memory, from where the engine binds them."""
    home = "/var/lib/cellrun/cells/cell-1"
    paths = ("/var/run/docker.sock", home, "/dev/shm")
    assert read_compose()["services"][CELL]["volumes"] == [f"{path}:{path}" for path in paths]


SANDBOX = {
    "NoNewPrivileges": "true",
    "ProtectSystem": "strict",
    "ProtectHome": "true",
    "PrivateTmp": "true",
    "PrivateDevices": "true",
    "ProtectKernelTunables": "true",
    "ProtectKernelModules": "true",
    "ProtectKernelLogs": "true",
    "ProtectControlGroups": "true",
    "ProtectClock": "true",
    "ProtectHostname": "true",
    "LockPersonality": "true",
    "RestrictAddressFamilies": "AF_UNIX AF_INET AF_INET6",
    "RestrictNamespaces": "true",
    "RestrictRealtime": "true",
    "RestrictSUIDSGID": "true",
    "CapabilityBoundingSet": "",
    "AmbientCapabilities": "",
    "SystemCallArchitectures": "native",
    "SystemCallErrorNumber": "EPERM",
}


@pytest.mark.parametrize("name", NAMES)
def test_unit_has_all_lines_of_the_sandbox(name: str) -> None:
    settings = dict(read_units()[name].settings)
    assert {key: settings.get(key) for key in SANDBOX} == SANDBOX
    # Of several lines the last is read here: it removes calls from those of services.
    removed = "~@privileged" if name == CELL else "~@privileged @resources"
    assert settings["SystemCallFilter"] == removed


@pytest.mark.parametrize("name", [*NAMES, "prepare"])
def test_compose_service_has_no_capabilities_and_has_limits(name: str) -> None:
    service = read_compose()["services"][name]
    assert service["cap_drop"] == ["ALL"]
    assert not {"cap_add", "privileged", "devices"} & service.keys()
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert service["pids_limit"] > 0
    assert service["mem_limit"]


@pytest.mark.parametrize("name", NAMES)
def test_unit_limits_memory_and_tasks(name: str) -> None:
    assert {"MemoryMax", "TasksMax", "LimitNOFILE"} <= read_units()[name].settings.keys()


@pytest.mark.parametrize("path", sorted((DEPLOY / "systemd").glob("*.service")), ids=str)
def test_systemd_analyze_rates_the_exposure_of_a_unit_below_three(
    path: Path, tmp_path: Path
) -> None:
    """Of 10; systemd calls up to 5 medium. An unhardened unit has 9.6."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed (Debian: the package systemd)")
    unit = tmp_path / path.name.replace("@.", "@cell-1.")
    unit.write_text(path.read_text())
    done = subprocess.run(
        [program, "security", "--offline=true", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.search(r"Overall exposure level for .*: ([\d.]+)", done.stdout)
    assert found, done.stdout + done.stderr
    assert float(found[1]) < 3.0


def test_no_unit_of_a_shared_user_removes_objects_in_memory() -> None:
    """RemoveIPC= would delete the secrets of cells in /dev/shm when another unit stops."""
    for unit in read_units().values():
        assert "RemoveIPC" not in unit.settings, unit.name


def test_systemd_analyze_accepts_the_units(tmp_path: Path) -> None:
    """Where systemd is installed; elsewhere their form was checked by reading them above."""
    program = shutil.which("systemd-analyze")
    for path in (DEPLOY / "systemd").iterdir():
        text = path.read_text().replace("/opt/cellrun/.venv/bin/python", sys.executable)
        (tmp_path / path.name.replace("@.", "@cell-1.")).write_text(text)
    if program:
        units = sorted(str(path) for path in tmp_path.iterdir())
        done = subprocess.run(
            [program, "verify", "--man=no", *units], capture_output=True, text=True, check=False
        )
        ours = [line for line in done.stderr.splitlines() if "cellrun" in line]
        assert ours == []


def test_dockerfiles_copy_existing_files_of_the_build_context() -> None:
    let_through = (ROOT / ".dockerignore").read_text()
    for name in ("controlplane.Dockerfile", "cell.Dockerfile"):
        for source in copied(name):
            assert (ROOT / source).exists(), f"{name} copies {source}"
            top = source.split("/")[0]
            assert f"!{top}" in let_through, f"{name} copies {source}"


def test_cell_starts_from_the_files_of_the_cell_image_alone(tmp_path: Path) -> None:
    for source in copied("cell.Dockerfile"):
        target = tmp_path / source
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, target)
        else:
            shutil.copy(ROOT / source, target)
    done = subprocess.run(
        # Isolated from the editable installation of this project, which would lend its packages.
        [sys.executable, "-P", "-c", START_WITHOUT_OURS, str(tmp_path), str(ROOT)],
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "settings refused: CELLRUN_CELL_NAME is not set" in done.stderr


START_WITHOUT_OURS = """
import runpy, sys
ours, project = sys.argv[1:]
sys.path[:] = [ours] + [path for path in sys.path if path != project]
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
sys.argv[:] = ["workers"]
runpy.run_module("workers", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("pinned", "folders"),
    [
        ("cell.txt", ("workers/", "controlplane/contract/")),
        ("run.txt", ("controlplane/", "cellrun/")),
    ],
)
def test_an_image_installs_what_its_code_imports(pinned: str, folders: tuple[str, ...]) -> None:
    text = (ROOT / "requirements" / pinned).read_text()
    installed = {normal(name) for name in re.findall(r"^([\w.-]+)(?:\[.*\])?==", text, re.M)}
    provided_by = importlib.metadata.packages_distributions()
    missing = {
        f"{source.path}: {name}"
        for source in sources()
        if source.path.startswith(folders)
        # The embedded stack is for trying and testing: it is not in the images' requirements.
        and not source.path.startswith("controlplane/config/stack/")
        for name in imported_packages(source.tree)
        if not {normal(found) for found in provided_by.get(name, ())} & installed
    }
    assert missing == set()


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def imported_packages(tree: ast.Module) -> set[str]:
    """Top-level packages that are neither Python's nor ours."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names - sys.stdlib_module_names - {"controlplane", "workers", "cellrun"}


def copied(dockerfile: str) -> list[str]:
    """What the Dockerfile takes from the project."""
    lines = (DEPLOY / dockerfile).read_text().splitlines()
    return [
        word
        for line in lines
        if line.startswith("COPY ") and "--from" not in line
        for word in line.split()[1:-1]
    ]
