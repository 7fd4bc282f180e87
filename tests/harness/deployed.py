"""The files of deploy/ as programs: what each unit and each compose service would start."""

import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from controlplane.config.stack.parts.credentials import Credentials
from controlplane.config.stack.parts.home import StackHome
from controlplane.config.stack.processes import Process, StackPlan, list_processes
from tests.architecture.source import ROOT

DEPLOY = ROOT / "deploy"
INSTALLED_PYTHON = "/opt/cellrun/.venv/bin/python"
INSTALLED_HOME = "/var/lib/cellrun"
INSTALLED_BEAT = "/var/lib/cellrun-beat"
CELL = "cell-1"
WEB_PORT, FLOWER_PORT = 8000, 5555


@dataclass(frozen=True, slots=True)
class Unit:
    """One systemd unit, its specifiers replaced as systemd would for the instance CELL."""

    name: str
    command: list[str]
    environment: dict[str, str]
    environment_files: list[str]
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment_file(self) -> str:
        """The usual settings, of all cells of a host in the case of a cell."""
        return self.environment_files[0]


def read_units() -> dict[str, Unit]:
    """The units by the name that the process has in the stack."""
    units = {}
    for path in sorted((DEPLOY / "systemd").glob("*.service")):
        name = path.stem.removeprefix("cellrun-").replace("cell@", CELL)
        units[name] = _read_unit(name, path.read_text())
    return units


def _read_unit(name: str, text: str) -> Unit:
    settings: dict[str, str] = {}
    environment: dict[str, str] = {}
    files: list[str] = []
    for line in text.splitlines():
        key, sign, value = line.partition("=")
        if not sign or line.startswith("#"):
            continue
        if key == "EnvironmentFile":
            files.append(_specified(value).removeprefix("-"))
        elif key == "Environment":
            environment |= dict(word.split("=", 1) for word in shlex.split(_specified(value)))
        else:
            settings[key] = _specified(value)
    return Unit(
        name,
        shlex.split(settings["ExecStart"]),
        environment,
        files,
        settings,
    )


def _specified(value: str) -> str:
    """`value` with %i and %% replaced; no other specifier is used, so none is known here."""
    known = {"%i": CELL, "%%": "%"}
    return re.sub(r"%.", lambda found: known[found[0]], value)


def read_compose() -> dict[str, Any]:
    """The compose file, its anchors resolved."""
    document: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return document


def read_example(name: str) -> dict[str, str]:
    """The settings of an env example that are not commented out."""
    lines = (DEPLOY / name).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def list_supervised(folder: Path) -> dict[str, Process]:
    """The processes of a stack of one cell with the usual ports, but PostgreSQL and Redis."""
    return {process.name: process for process in list_processes(make_plan(folder))}


def make_plan(folder: Path, secrets: Credentials | None = None) -> StackPlan:
    """Return the plan of that stack."""
    return StackPlan(
        home=StackHome(folder),
        credentials=secrets or Credentials(*[""] * 10),
        web_port=WEB_PORT,
        flower_port=FLOWER_PORT,
        cells=1,
        driver="docker",
        database_url="postgresql://db/cellrun",
        broker_url="redis://broker/0",
        database=None,
        redis_port=None,
    )


def as_installed(command: list[str], folder: Path) -> list[str]:
    """A command of the stack as it reads where Cellrun is installed."""
    places = {
        sys.executable: INSTALLED_PYTHON,
        str(StackHome(folder).beat): INSTALLED_BEAT,
        str(folder): INSTALLED_HOME,
    }
    return [_replaced(word, places) for word in command]


def as_here(command: list[str], folder: Path, *, web_port: int, flower_port: int) -> list[str]:
    """A command of a unit as it can be run here: this Python, that folder, these ports."""
    places = {
        INSTALLED_PYTHON: sys.executable,
        INSTALLED_BEAT: str(StackHome(folder).beat),
        INSTALLED_HOME: str(folder),
    }
    found = [_replaced(word, places) for word in command]
    ports = {str(WEB_PORT): str(web_port), f"--port={FLOWER_PORT}": f"--port={flower_port}"}
    return [ports.get(word, word) for word in found]


def _replaced(word: str, places: Mapping[str, str]) -> str:
    for old, new in places.items():
        word = word.replace(old, new)
    return word
