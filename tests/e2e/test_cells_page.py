"""The shell blocks of docs/cells.md set up a cell that works: they run as written, in order."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from cellrun import Session
from cellrun.settings import ClientSettings
from tests.architecture.source import ROOT
from tests.e2e.engine import containers_of, remove_containers
from tests.e2e.stack import Companion, RunningStack, wait_until
from tests.e2e.work import run_to_end

pytestmark = [pytest.mark.stack, pytest.mark.engine, pytest.mark.xdist_group("shared stack")]

BLOCK = re.compile(r"^```sh\n(?P<lines>.*?)^```$", re.MULTILINE | re.DOTALL)
CELL = "cell-7"
START = ".venv/bin/cellrun-cell\n"
INSTALLATION = "127.0.0.1"  # the host name of the stack's web
CONTAINER = {"image": "cellrun/demo", "resources": {"cpu": 0.1, "memory": "16Mi"}}


def read_blocks() -> list[str]:
    """Every block of the page that is marked `sh`, in order."""
    return [found["lines"] for found in BLOCK.finditer((ROOT / "docs/cells.md").read_text())]


class Reader:
    """A reader of the page at a shell, on a host whose folders are below one of the test's."""

    def __init__(self, stack: RunningStack, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            **stack.environment,
            "CELLRUN_HOME": str(stack.home),
            # Not on the page: the cell shares the host with the stack's.
            "CELLRUN_CELL_CAPACITY": "cpu=1,memory=256Mi,disk=1Gi",
        }

    def script(self, block: str) -> str:
        """The block, with files below the test's folder instead of /etc and /var/lib."""
        places = {
            "/etc/cellrun": f"{self.folder}/etc",
            f"{CELL}.token": f"{self.folder}/{CELL}.token",
            "next.key": f"{self.folder}/next.key",
            "cellrun-cell join": f"cellrun-cell join --folder {self.folder}/etc"
            f" --home {self.folder}/{CELL}",
        }
        for written, here in places.items():
            block = block.replace(written, here)
        return block

    def run(self, block: str) -> str:
        """Run a block that ends, and return its output."""
        done = subprocess.run(
            ["bash", "-euc", self.script(block)],
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
        return done.stdout

    def start(self, block: str) -> Companion:
        """Run a block that starts the cell in the foreground."""
        script = self.script(block).replace(START, f"exec {START}")
        return Companion(["bash", "-euc", script], self.environment, self.folder / "cell.log")


@pytest.fixture(scope="module")
def stack(shared_stack: RunningStack) -> RunningStack:
    return shared_stack


def check_that_files_are_private(folder: Path) -> None:
    settings, key = (folder / f"{CELL}.{kind}" for kind in ("env", "key"))
    assert settings.stat().st_mode & 0o777 == 0o600
    assert key.stat().st_mode & 0o007 == 0
    assert key.read_text().strip() not in settings.read_text()


def cell_of(session: Session) -> dict[str, object]:
    return next((dict(cell) for cell in session.cells() if cell["name"] == CELL), {})


def test_blocks_of_the_page_set_up_change_rotate_renew_and_revoke_a_cell(
    stack: RunningStack, tmp_path: Path
) -> None:
    reader = Reader(stack, tmp_path)
    url, token = stack.environment["CELLRUN_URL"], stack.environment["CELLRUN_OPERATOR_TOKEN"]
    ran = []
    try:
        with Session(ClientSettings(url, token)) as session:
            # Of the page's examples, these exist in every installation that has them.
            session.put_pool("gpu", {})
            blocks = iter(read_blocks())
            for block in blocks:
                ran.append(block)
                if START in block:
                    break
                reader.run(block)
            check_that_files_are_private(tmp_path / "etc" / "cells")
            with reader.start(ran[-1]) as cell:
                wait_until(
                    lambda: cell_of(session).get("state") == "READY",
                    seconds=60,
                    what="the cell is READY",
                )
                _, task = run_to_end(session, {**CONTAINER, "command": ["true"], "name": "joined"})
                assert (task["state"], task["cell_id"]) == ("SUCCEEDED", CELL)
                for block in blocks:
                    ran.append(block)
                    reader.run(block)
                wait_until(
                    lambda: cell_of(session)["revoked_at"] is not None,
                    seconds=60,
                    what="the cell is revoked",
                )
                assert cell.exit_code is None, cell.log.read_text()
    finally:
        remove_containers(INSTALLATION)
    text = "".join(ran)
    for words in ("--join-token", "cellrun-cell join", "--rotate", "--renew", "revoke_cell"):
        assert words in text
    assert containers_of(INSTALLATION) == []
