"""The import contracts of pyproject.toml hold."""

import subprocess
import sys
from pathlib import Path

from tests.architecture.source import ROOT


def test_import_contracts_hold() -> None:
    program = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run(
        [program, "--no-logo", "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
