"""The blocks of the tutorial run as written on a stack and print what the page shows."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.architecture.source import ROOT
from tests.e2e.engine import containers_of, remove_containers
from tests.e2e.stack import PREFIXES, RunningStack, open_folder, remnants
from tests.harness.pages import PageBlock, missing_lines, read_blocks

pytestmark = [pytest.mark.stack, pytest.mark.engine]

PAGE = ROOT / "docs" / "tutorial.md"
SECONDS = 180
MARK = "--- block"


def test_the_blocks_of_the_tutorial_print_what_it_shows() -> None:
    blocks = read_blocks(PAGE)
    assert len(blocks) > 8
    with open_folder() as folder:
        # As a reader after `make up`: a copy of the project with its stack below `.cellrun`.
        clone = folder / "cellrun"
        clone.mkdir()
        for name in (".venv", "examples"):
            (clone / name).symlink_to(ROOT / name)
        stack = RunningStack(clone / ".cellrun")
        try:
            with stack:
                outputs = run_blocks(blocks, clone)
        finally:
            remove_containers(stack.installation)
        assert containers_of(stack.installation) == []
        assert remnants(stack.home) == []
    for block, output in zip(blocks, outputs, strict=True):
        assert missing_lines(block.excerpt, output) == [], f"{block.lines}\nprinted:\n{output}"


def run_blocks(blocks: list[PageBlock], clone: Path) -> list[str]:
    """Run the blocks in one shell that ends at the first error; return the output of each."""
    script = "".join(f"echo '{MARK}'\n{block.lines}" for block in blocks)
    plain = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=clone,
        env=plain,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout.split(f"{MARK}\n")[1:]
