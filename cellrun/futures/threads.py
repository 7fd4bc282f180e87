"""Run the threads of a client: no error ends one silently, and its end has a bound."""

import threading
import time
from collections.abc import Callable

CLOSING_SECONDS = 10.0
"""How long the end of a client tries an unavailable server again."""


class Patience:
    """The time for which an unavailable server is tried again: less once the client ends."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = float("inf")

    def shorten(self) -> None:
        """Begin the end: give up what the server does not accept within CLOSING_SECONDS."""
        self._end = min(self._end, time.monotonic() + CLOSING_SECONDS)

    def is_over(self, since: float) -> bool:
        """Return whether a request that began at `since` is given up."""
        return time.monotonic() > min(since + self.seconds, self._end)

    @property
    def has_ended(self) -> bool:
        """Return whether no further request should be sent."""
        return time.monotonic() > self._end

    def left(self) -> float:
        """Return the seconds until the end, which has begun."""
        return max(self._end - time.monotonic(), 0.0)


class _Worker(threading.Thread):
    """A thread in which callbacks of futures run."""


def is_client_thread() -> bool:
    """Return whether a thread of a client runs this: if it waits for a future, none ends."""
    return isinstance(threading.current_thread(), _Worker)


class ClientThread:
    """A thread of a client. `on_fault` receives any error that ends its work."""

    def __init__(
        self, work: Callable[[], None], name: str, on_fault: Callable[[BaseException], None]
    ) -> None:
        self._work, self._on_fault = work, on_fault
        self._thread = _Worker(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin the work."""
        self._thread.start()

    def join(self, seconds: float) -> bool:
        """Return whether the work has ended, at the latest after so many seconds."""
        if self._thread.ident is None or self._thread is threading.current_thread():
            return True
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as fault:  # also SystemExit, which a callback of a future may raise
            self._on_fault(fault)
