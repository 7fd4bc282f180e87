"""The import contracts of pyproject.toml hold, and those that it cannot express."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import cellrun
from tests.architecture.source import ROOT, sources

PARTS = ("cellrun", "controlplane", "workers")


def test_import_contracts_hold() -> None:
    program = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run(
        [program, "--no-logo", "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("workers", ("controlplane.contract",)),
        # The command is one end of a stream, of which a cell is the other.
        (
            "cellrun",
            (
                "controlplane.spec",
                "controlplane.contract.exec_frames",
                "controlplane.contract.exec_link",
                "controlplane.contract.exec_socket",
            ),
        ),
    ],
    ids=["workers", "cellrun"],
)
def test_only_named_parts_of_the_control_plane_are_imported(
    package: str, allowed: tuple[str, ...]
) -> None:
    """Also of packages that are still to come, which a list of forbidden ones would not name."""
    foreign = [
        f"{source.path} imports {name}"
        for source in sources()
        if source.path.startswith(package + "/")
        for name in imported(source.tree)
        if name.split(".")[0] == "controlplane"
        and not any(f"{name}.".startswith(f"{part}.") for part in allowed)
    ]
    assert foreign == []


@pytest.mark.parametrize("name", ["airflow/cellrun_airflow.py", "prefect/cellrun_prefect.py"])
def test_example_imports_public_names_of_the_client_only(name: str) -> None:
    tree = ast.parse((ROOT / "examples" / name).read_text())
    used = {found for found in imported(tree) if found.split(".")[0] in PARTS}
    assert used
    assert used <= {f"cellrun.{public}" for public in cellrun.__all__}


def imported(tree: ast.Module) -> list[str]:
    """Return the full names of everything that is imported."""
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names
