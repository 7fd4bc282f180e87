"""`make wait`: return once the stack in CELLRUN_HOME is ready."""

import json
import time

from controlplane.config.stack import options
from controlplane.config.stack.failure import StackError
from controlplane.config.stack.parts.home import StackHome, read_shell_lines
from controlplane.config.stack.readiness import get

# The start itself gives up after 90 s; installing the requirements may come before it.
DEADLINE_SECONDS = 600.0
# How long the folder may be unlocked before the conclusion that no stack is being started.
PATIENCE_SECONDS = 30.0
POLL_SECONDS = 0.5


def run(*, patience: float = PATIENCE_SECONDS) -> int:
    """0 once web is ready and every cell of the stack is READY; raises StackError if none comes."""
    home = StackHome(options.from_process().home)
    began = held_at = time.monotonic()
    while missing := _missing(home):
        now = time.monotonic()
        if home.is_held():
            held_at = now
        if now - held_at > patience:
            raise StackError(f"no stack is being started in {home.root}")
        if now - began > DEADLINE_SECONDS:
            raise StackError(f"the stack in {home.root} does not become ready: {missing}")
        time.sleep(POLL_SECONDS)
    print(f"cellrun: the stack in {home.root} is ready")
    return 0


def _missing(home: StackHome) -> str:
    """What is not there yet; empty when all is."""
    try:
        environment = read_shell_lines(home.environment_file.read_text())
    except OSError:
        return "its addresses"
    url = environment["CELLRUN_URL"]
    answer = ""
    for path in ("/readyz", "/api/v1/cells"):
        status, answer = get(f"{url}{path}", token=environment["CELLRUN_OPERATOR_TOKEN"])
        if status != 200:
            return f"web: {answer}"
    cells = json.loads(answer)["results"]
    ready = {cell["name"] for cell in cells if cell["state"] == "READY"}
    own = {path.stem for path in home.run.glob("cell-*.pid")}
    return ", ".join(sorted(own - ready))
