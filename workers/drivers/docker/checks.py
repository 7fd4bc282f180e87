"""Commands run in a container by `exec`, bounded in time, at most one at once in each container.

The engine cannot end such a command: after its timeout it continues, and meanwhile no other is
begun, so that a check that hangs does not fill its container with processes.
"""

import threading
import time
from collections.abc import Sequence
from typing import Any

from workers.attempt.runtime import EngineError

POLL_SECONDS = (0.02, 0.05, 0.1, 0.2)  # between checks whether it has ended; the last one repeats


class RunningChecks:
    """The commands that were begun and not seen to end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, str] = {}

    def run(self, api: Any, name: str, command: Sequence[str], seconds: float) -> str:
        """Empty if it ended with exit status 0 within `seconds`, else why not."""
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
        """Nothing of it is under way in that container."""
        with self._lock:
            self._running.pop(name, None)


def choose_gpus(count: int, capacity: int, held: Sequence[str]) -> tuple[int, ...]:
    """The lowest `count` numbers below `capacity` that are in none of `held`. Raises EngineError.

    `held`: what containers hold, like "0,2".
    """
    taken = {int(number) for item in held for number in item.split(",") if number.isdecimal()}
    free = [number for number in range(capacity) if number not in taken]
    if len(free) < count:
        raise EngineError(f"{count} GPUs are asked for, and {len(free)} of {capacity} are free")
    return tuple(free[:count])
