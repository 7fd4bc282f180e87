"""`make demo`: run the examples on a temporary stack on free ports."""

import dataclasses
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from controlplane.config.stack import options
from controlplane.config.stack.parts.home import StackHome
from controlplane.config.stack.processes import PROJECT, inherited_environment
from controlplane.config.stack.running import Stack, shell_environment
from controlplane.config.stack.up import echo

FOLDER_PREFIX = "demo-"


def run() -> int:
    """Run the examples and return their exit code: 0 if each had its documented result."""
    requested = options.from_process()
    requested.home.mkdir(parents=True, exist_ok=True)
    _sweep(requested.home)
    home = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=requested.home))
    home.chmod(0o755)
    chosen = dataclasses.replace(requested, home=home, web_port=0, flower_port=0)
    if chosen.engine == "process":
        echo("ENGINE=process: tasks are plain processes of this machine, without isolation")
    began = time.monotonic()
    code = 1
    try:
        with Stack(chosen, echo) as stack:
            assert stack.plan is not None
            echo(f"the stack is up after {time.monotonic() - began:.0f} s; running the examples")
            environment = {
                **inherited_environment(),
                **shell_environment(stack.plan),
                "ENGINE": chosen.engine,
            }
            code = subprocess.run(
                [sys.executable, "-m", "examples.run"],
                env=environment,
                cwd=PROJECT,
                check=False,
            ).returncode
            echo("stopping the stack")
    finally:
        if code == 0:
            shutil.rmtree(home, ignore_errors=True)
        else:
            echo(f"the stack's state and logs are kept in {home}")
    return code


def _sweep(folder: Path) -> None:
    """Remove the folders of earlier demos that have ended."""
    for path in folder.glob(FOLDER_PREFIX + "*"):
        if path.is_dir() and not StackHome(path).is_held():
            shutil.rmtree(path, ignore_errors=True)
