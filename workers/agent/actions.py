"""What a cell has yet to do with its driver: in line until what it rests on is safe on disk."""

from collections.abc import Callable
from functools import partial

from structlog.stdlib import BoundLogger

from controlplane.contract.messages.orders import StopAttempt
from workers.attempt.events import Launch
from workers.drivers.base import Driver


class DeferredActions:
    """In the order in which they were noted, but that stops come last: they wait for nothing."""

    def __init__(self, driver: Driver, log: BoundLogger) -> None:
        """`log`: bound to the cell."""
        self._driver = driver
        self._log = log
        self._actions: list[Callable[[], None]] = []
        self._stops: list[Callable[[], None]] = []

    def start(self, launch: Launch) -> None:
        """Begin an attempt."""
        self._actions.append(partial(self._driver.start, launch))

    def adopt(self, launch: Launch) -> None:
        """Take charge of what an earlier process began."""
        self._actions.append(partial(self._driver.adopt, launch))

    def stop(self, stop: StopAttempt) -> None:
        """End an attempt. Were it forgotten, it would be ordered again: nothing has to be safe."""
        self._stops.append(
            partial(self._driver.stop, stop.uid, grace_seconds=stop.grace_seconds, force=stop.force)
        )

    def remove(self, uid: str) -> None:
        """Delete what is left of an attempt."""
        self._actions.append(partial(self._driver.remove, uid))

    def carry_out(self, *, is_safe: bool) -> None:
        """Do what may be done: all of it, or, while nothing is safe on disk, what stops only."""
        due = [*self._actions, *self._stops] if is_safe else self._stops
        self._stops = []
        if is_safe:
            self._actions = []
        for action in due:
            try:
                action()
            except Exception:  # a driver's fault must not keep the others from being served
                self._log.exception("driver_action_failed")
