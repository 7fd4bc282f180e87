"""`make down`: stop the stack that runs in CELLRUN_HOME."""

import os
import signal
import time
from pathlib import Path

from controlplane.config.stack import options
from controlplane.config.stack.failure import StackError
from controlplane.config.stack.parts.home import StackHome
from controlplane.config.stack.running import STOP_SECONDS


def run() -> int:
    """Stop the stack and wait for its end; return 0 also if no stack runs."""
    home = StackHome(options.from_process().home)
    if not home.is_held():
        left = _left_behind(home)
        if left:
            # It was killed with its supervisor. A new stack adopts the cells, and can stop them.
            raise StackError(
                f"the stack in {home.root} was killed, but these processes still run:"
                f" {', '.join(left)}. Run `make up`, which takes them over, and then `make down`"
            )
        print(f"cellrun: no stack runs in {home.root}")
        return 0
    pid = home.running_pid()
    if pid is None:
        raise StackError(f"a stack is being started in {home.root}: try again when it is ready")
    os.kill(pid, signal.SIGTERM)
    give_up = time.monotonic() + STOP_SECONDS
    while home.is_held():
        if time.monotonic() > give_up:
            raise StackError(
                f"the stack in {home.root} (process {pid}) did not stop within"
                f" {STOP_SECONDS:.0f} s: see its logs in {home.logs}"
            )
        time.sleep(0.1)
    print(f"cellrun: the stack in {home.root} is stopped")
    return 0


def _left_behind(home: StackHome) -> list[str]:
    """Return the names of processes that a killed stack left running."""
    found = []
    for path in sorted(home.run.glob("*.pid")):
        try:
            environment = Path(f"/proc/{int(path.read_text())}/environ").read_bytes()
        except (OSError, ValueError):
            continue
        if os.fsencode(home.root) in environment:
            found.append(path.stem)
    return found
