"""Commands run in a container by `exec`, with a timeout, at most one at a time in each container.

The engine cannot kill such a command. After its timeout it continues, and no other is started
meanwhile, so that a hanging check does not fill its container with processes.
"""

import threading
import time
from collections.abc import Sequence
from typing import Any

POLL_SECONDS = (0.02, 0.05, 0.1, 0.2)  # between polls for the end; the last value repeats


class RunningChecks:
    """The commands that were started and may still run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, str] = {}

    def run(self, api: Any, name: str, command: Sequence[str], seconds: float) -> str:
        """Return "" if the command ended with exit status 0 within `seconds`, else the reason."""
        end = time.monotonic() + seconds
        with self._lock:
            earlier = self._running.get(name)
        if earlier is not None and api.exec_inspect(earlier)["Running"]:
            return "an earlier check has not ended"
        exec_id = str(api.exec_create(name, list(command), stdout=False, stderr=False)["Id"])
        with self._lock:
            self._running[name] = exec_id
        api.exec_start(exec_id, detach=True)
        for tries in range(1_000_000):
            found = api.exec_inspect(exec_id)
            if not found["Running"]:
                self.forget(name)
                code = found["ExitCode"]
                return "" if code == 0 else f"exit status {code}"
            rest = end - time.monotonic()
            if rest <= 0:
                break
            time.sleep(min(rest, POLL_SECONDS[min(tries, len(POLL_SECONDS) - 1)]))
        return f"not ended within {seconds:g} s"

    def forget(self, name: str) -> None:
        """Forget the command of that container."""
        with self._lock:
            self._running.pop(name, None)
