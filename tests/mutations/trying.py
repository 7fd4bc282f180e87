"""Plants one mistake of `rows` in a copy of the tree and lets its scenario look for it."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from tests.mutations.row_mutation import RowMutation
from tests.mutations.running import COPIED, ROOT, mutate

SCENARIOS = "tests/scenarios"
TIMEOUT_SECONDS = 300
_LEFT_OUT = shutil.ignore_patterns("__pycache__", "e2e", "simulation", "unit")
_PASSED, _FAILED = 0, 1


def is_found(mutation: RowMutation, *, database: str) -> bool:
    """Whether the scenario named fails for the mistake. `database`: whose name no other uses."""
    return not passes([mutation.test], database=database, mutation=mutation)


def passes(tests: Iterable[str], *, database: str, mutation: RowMutation | None = None) -> bool:
    """Whether the scenarios `tests` pass in a copy of the tree, with the mistake if one is given.

    Raises RuntimeError if they could not be run to an end.
    """
    with tempfile.TemporaryDirectory(prefix="cellrun-mutant-") as folder:
        tree = Path(folder)
        for name in (*COPIED, "client"):
            shutil.copytree(ROOT / name, tree / name, ignore=_LEFT_OUT)
        shutil.copy(ROOT / "pyproject.toml", tree)
        if mutation is not None:
            path = tree / mutation.file
            path.write_text(mutate(path.read_text(), mutation))
        done = _run([f"{SCENARIOS}/{test}" for test in tests], tree, database)
    if done.returncode not in (_PASSED, _FAILED) or "\nERROR tests/" in done.stdout:
        raise RuntimeError(f"pytest broke down:\n{done.stdout[-4000:]}{done.stderr[-2000:]}")
    return done.returncode == _PASSED


def _run(tests: Sequence[str], tree: Path, database: str) -> "subprocess.CompletedProcess[str]":
    own = {
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
        "DATABASE_URL": _with_name(os.environ["DATABASE_URL"], database),
    }
    inherited = {name: text for name, text in os.environ.items() if "PYTEST" not in name}
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "--reuse-db",
            *tests,
        ],
        cwd=tree,
        env={**inherited, **own},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )


def _with_name(url: str, database: str) -> str:
    """The URL of another database of the same server."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{database}"))
