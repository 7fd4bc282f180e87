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
    """Ask the stack to stop and wait until it has; 0 also if none runs."""
    home = StackHome(options.from_process().home)
    if not home.is_held():
        left = _left_behind(home)
        if left:
            # It was killed, and its keeper too. A new one knows the cells, and ends what they run.
            raise StackError(
                f"the stack in {home.root} was killed, and {', '.join(left)} run on:"
                " `make up` takes them over, and then `make down` ends all of it"
            )
        print(f"cellrun: no stack runs in {home.root}")
        return 0
    pid = home.running_pid()
    if pid is None:
        raise StackError(f"a stack is being started in {home.root}: try again")
    os.kill(pid, signal.SIGTERM)
    give_up = time.monotonic() + STOP_SECONDS
    while home.is_held():
        if time.monotonic() > give_up:
            raise StackError(f"the stack in {home.root} (process {pid}) does not stop")
        time.sleep(0.1)
    print(f"cellrun: the stack in {home.root} is stopped")
    return 0


def _left_behind(home: StackHome) -> list[str]:
    """Processes of a stack that is gone, by name."""
    found = []
    for path in sorted(home.run.glob("*.pid")):
        try:
            environment = Path(f"/proc/{int(path.read_text())}/environ").read_bytes()
        except (OSError, ValueError):
            continue
        if os.fsencode(home.root) in environment:
            found.append(path.stem)
    return found
