"""The shell blocks of the README work as written, in one shell, in a fresh copy."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.config.stack.parts.ports import free_port
from tests.architecture.source import ROOT
from tests.e2e.engine import containers_of, remove_containers
from tests.e2e.stack import PREFIXES, RunningStack, open_folder, remnants
from tests.harness.pages import read_blocks

pytestmark = [pytest.mark.stack, pytest.mark.engine]

SECONDS = 240
PAGE = ROOT / "README.md"
STOP = "make down"
# What no reader types: before the stack is stopped, its rows are checked.
CHECK = ".venv/bin/python manage.py check_invariants\n"
# A clone has none of these; `.venv` is lent to it, so that nothing is installed again.
NOT_IN_A_CLONE = (".git", ".venv", ".cellrun", ".*_cache", "__pycache__", "*.egg-info", "build")


@pytest.fixture
def clone() -> Iterator[Path]:
    """A copy of the project in which nothing ran yet."""
    with open_folder() as folder:
        copy = folder / "cellrun"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*NOT_IN_A_CLONE), symlinks=True)
        (copy / ".venv").symlink_to(ROOT / ".venv")
        yield copy


@pytest.fixture
def environment() -> dict[str, str]:
    """A shell that knows nothing of Cellrun, on a machine where the usual ports may be taken."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}
    plain["WEB_PORT"] = str(free_port())
    plain["FLOWER_PORT"] = str(free_port(taken={int(plain["WEB_PORT"])}))
    return plain


def test_readme_shows_the_commands_to_start_use_and_stop_a_stack() -> None:
    text = "".join(block.lines for block in read_blocks(PAGE))
    for words in ("make demo", "make up", "cellrun run", "cellrun submit", "make down"):
        assert words in text


def test_the_blocks_of_the_readme_run_as_written(clone: Path, environment: dict[str, str]) -> None:
    script = "".join(
        f"echo '--- block {number}'\n{CHECK if STOP in block.lines else ''}{block.lines}"
        for number, block in enumerate(read_blocks(PAGE), start=1)
    )
    assert CHECK in script
    (clone.parent / "readme.sh").write_text(script)
    try:
        code, output = run_script(clone, environment)
        assert code == 0, output
    finally:
        stop_stack(clone, environment)
    home = clone / ".cellrun"
    left = containers_of(RunningStack(home).installation)
    remove_containers(RunningStack(home).installation)
    assert left == []
    assert remnants(home) == []


def run_script(clone: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Return the exit code of the shell, and all output of it and its commands."""
    transcript = clone.parent / "transcript"
    with transcript.open("wb") as output:
        shell = subprocess.Popen(
            ["bash", "-e", str(clone.parent / "readme.sh")],
            cwd=clone,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        shell.wait(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, signal.SIGKILL)
        shell.wait()
    log = clone / "up.log"
    return shell.returncode, transcript.read_text() + (log.read_text() if log.exists() else "")


def stop_stack(clone: Path, environment: dict[str, str]) -> None:
    """Stop what a block that failed left running; nothing otherwise."""
    subprocess.run(
        ["make", "down"], cwd=clone, env=environment, capture_output=True, check=False, timeout=120
    )
