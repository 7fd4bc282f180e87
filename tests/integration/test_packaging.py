"""Each extra of the built wheel installs one part, and no package that only another part needs."""

import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.architecture.source import ROOT

# Fresh environments are filled from the package index: minutes on a slow network.
pytestmark = pytest.mark.serial

INSTALL_SECONDS = 600
SOURCES = ("pyproject.toml", "LICENSE", "controlplane", "workers", "cellrun")

IMPORT_ALL = """
import importlib, pkgutil, sys
for package in sys.argv[1:]:
    module = importlib.import_module(package)
    for found in pkgutil.walk_packages(module.__path__, f"{package}."):
        if not found.name.endswith(".__main__"):
            importlib.import_module(found.name)
"""
PRINT_MISSING = """
import importlib.util, sys
print(*[name for name in sys.argv[1:] if importlib.util.find_spec(name) is None])
"""
USE_CLIENT = """
from cellrun import Unreachable, connect
try:
    with connect() as session:
        session.job(1)
except Unreachable:
    print("unreachable")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel, built from a copy: building leaves files beside the source."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, source / name)
    command = ["wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run([sys.executable, "-m", "pip", *command, "--wheel-dir", str(target), str(source)])
    (built,) = target.glob("*.whl")
    return built


def test_the_wheel_holds_every_file_of_the_three_packages(wheel: Path) -> None:
    expected = {
        str(path.relative_to(ROOT))
        for package in ("controlplane", "workers", "cellrun")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    with zipfile.ZipFile(wheel) as archive:
        assert expected - set(archive.namelist()) == set()


def test_client_extra_installs_only_the_command_and_the_client(wheel: Path, tmp_path: Path) -> None:
    python = install(wheel, "client", "run.txt", tmp_path)
    assert "Usage: cellrun" in run([str(python.with_name("cellrun")), "--help"])
    run([str(python), "-I", "-c", IMPORT_ALL, "cellrun", "controlplane.spec"])
    settings = {"CELLRUN_URL": "http://127.0.0.1:9", "CELLRUN_TOKEN": "token"}
    assert run([str(python), "-I", "-c", USE_CLIENT], settings) == "unreachable\n"
    foreign = ["django", "rest_framework", "celery", "kombu", "redis", "numpy", "docker", "psycopg"]
    assert list_missing(python, foreign) == foreign


def test_cell_extra_installs_a_cell_without_the_control_plane(wheel: Path, tmp_path: Path) -> None:
    python = install(wheel, "cell", "cell.txt", tmp_path)
    run([str(python), "-I", "-c", IMPORT_ALL, "workers", "controlplane.contract"])
    foreign = ["django", "rest_framework", "psycopg", "numpy", "pydantic", "typer"]
    assert list_missing(python, foreign) == foreign
    started = subprocess.run(
        [str(python), "-I", "-m", "workers"],
        env={},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert started.returncode == 2, started.stderr
    assert "CELLRUN_CELL_NAME is not set" in started.stderr


def install(wheel: Path, extra: str, pinned: str, folder: Path) -> Path:
    """Install one extra of `wheel`, at the pinned versions, and return the new Python."""
    constraints = folder / "constraints.txt"
    # Without hashes: pip would then want one of the wheel that was just built.
    text = (ROOT / "requirements" / pinned).read_text()
    pins = re.findall(r"^([\w.-]+)(?:\[.*\])?(==[^\\\n]+)", text, re.MULTILINE)
    constraints.write_text("".join(f"{name}{version}\n" for name, version in pins))
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    command = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([str(python), *command, "--constraint", str(constraints), f"{wheel}[{extra}]"])
    return python


def list_missing(python: Path, names: list[str]) -> list[str]:
    """Return those of `names` that the environment cannot import."""
    return run([str(python), "-I", "-c", PRINT_MISSING, *names]).split()


def run(command: list[str], settings: Mapping[str, str] = MappingProxyType({})) -> str:
    """Run `command` outside of this project and return what it printed."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command,
        cwd="/",
        env={**inherited, **settings},
        capture_output=True,
        text=True,
        check=False,
        timeout=INSTALL_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_bills_of_materials_list_exactly_the_pinned_packages(tmp_path: Path) -> None:
    run(["make", "--silent", "--directory", str(ROOT), "sbom", f"SBOM={tmp_path}"])
    for part in ("run", "cell"):
        text = (ROOT / "requirements" / f"{part}.txt").read_text()
        pinned = re.findall(r"^([\w.-]+)(?:\[.*\])?==(\S+)", text, re.MULTILINE)
        document = json.loads((tmp_path / f"{part}.cdx.json").read_text())
        assert document["bomFormat"] == "CycloneDX"
        listed = [(one["name"], one["version"]) for one in document["components"]]
        assert sorted(listed) == sorted(pinned)
        assert all(one["externalReferences"][0]["hashes"] for one in document["components"])
