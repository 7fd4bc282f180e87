"""`make down`: stops the stack that runs in CELLRUN_HOME, wherever it was started."""

import os
import signal
import time

from controlplane.config.stack import options
from controlplane.config.stack.failure import StackError
from controlplane.config.stack.home import Home
from controlplane.config.stack.running import STOP_SECONDS


def run() -> int:
    """Ask the stack to stop and wait until it has; 0 also if none runs."""
    home = Home(options.from_process().home)
    if not home.is_held():
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
