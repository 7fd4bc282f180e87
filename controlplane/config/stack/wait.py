"""`make wait`: return once the stack in CELLRUN_HOME is ready."""

import json
import time

from controlplane.config.stack import options
from controlplane.config.stack.failure import StackError
from controlplane.config.stack.parts.home import StackHome, read_shell_lines
from controlplane.config.stack.readiness import get

# The start gives up after 90 s; the installation of the requirements may precede it.
DEADLINE_SECONDS = 600.0
# If the folder is unlocked for longer, no stack is being started.
PATIENCE_SECONDS = 30.0
POLL_SECONDS = 0.5


def run(*, patience: float = PATIENCE_SECONDS) -> int:
    """Return 0 once web is ready and every cell is READY. Raise StackError if no stack starts."""
    home = StackHome(options.from_process().home)
    began = held_at = time.monotonic()
    earlier = _read_failure(home)
    while missing := _missing(home):
        now = time.monotonic()
        if home.is_held():
            held_at = now
        if (failed := _read_failure(home)) and failed != earlier:
            raise StackError(f"the stack in {home.root} did not start: {failed[1]}\n{_logs(home)}")
        if now - held_at > patience:
            fault = f"no stack is being started in {home.root}: run `make up`"
            if earlier is not None:
                fault += f". The last start failed: {earlier[1]}\n{_logs(home)}"
            raise StackError(fault)
        if now - began > DEADLINE_SECONDS:
            raise StackError(
                f"the stack in {home.root} is not ready after {DEADLINE_SECONDS:.0f} s: {missing}"
            )
        time.sleep(POLL_SECONDS)
    print(f"cellrun: the stack in {home.root} is ready")
    return 0


def _read_failure(home: StackHome) -> tuple[int, str] | None:
    """Return when and why a start in this folder failed last; None: the last one did not fail."""
    try:
        return home.failure_file.stat().st_mtime_ns, home.failure_file.read_text().rstrip()
    except FileNotFoundError:
        return None


def _logs(home: StackHome) -> str:
    return f"Logs of all processes: {home.logs}"


def _missing(home: StackHome) -> str:
    """Return what is not ready; an empty text if everything is."""
    try:
        environment = read_shell_lines(home.environment_file.read_text())
    except OSError:
        return f"there is no {home.environment_file}"
    url = environment["CELLRUN_URL"]
    answer = ""
    for path in ("/readyz", "/api/v1/cells"):
        status, answer = get(f"{url}{path}", token=environment["CELLRUN_OPERATOR_TOKEN"])
        if status != 200:
            return f"web: {answer}"
    cells = json.loads(answer)["results"]
    ready = {cell["name"] for cell in cells if cell["state"] == "READY"}
    own = {path.stem for path in home.run.glob("cell-*.pid")}
    waiting = ", ".join(sorted(own - ready))
    return waiting and f"not READY: {waiting}"
