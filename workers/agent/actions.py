"""Driver calls of a cell that wait until the journal entries that they depend on are on disk."""

from collections.abc import Callable
from functools import partial

from structlog.stdlib import BoundLogger

from controlplane.contract.messages.orders import StopAttempt
from workers.attempt.events import Launch
from workers.drivers.base import Driver


class DeferredActions:
    """Queued driver calls, in order; stops come last, because they do not depend on the journal."""

    def __init__(self, driver: Driver, log: BoundLogger) -> None:
        """Create an empty queue; `log` is bound to the cell."""
        self._driver = driver
        self._log = log
        self._actions: list[Callable[[], None]] = []
        self._stops: list[Callable[[], None]] = []

    def start(self, launch: Launch) -> None:
        """Queue the start of an attempt."""
        self._actions.append(partial(self._driver.start, launch))

    def adopt(self, launch: Launch) -> None:
        """Queue the adoption of an attempt of an earlier process."""
        self._actions.append(partial(self._driver.adopt, launch))

    def stop(self, stop: StopAttempt) -> None:
        """Queue a stop. It needs no journal entry, because a lost stop is ordered again."""
        self._stops.append(
            partial(self._driver.stop, stop.uid, grace_seconds=stop.grace_seconds, force=stop.force)
        )

    def remove(self, uid: str) -> None:
        """Queue the removal of an attempt."""
        self._actions.append(partial(self._driver.remove, uid))

    def carry_out(self, *, is_safe: bool) -> None:
        """Call the driver: for all actions, or only for stops if the journal is not `is_safe`."""
        due = [*self._actions, *self._stops] if is_safe else self._stops
        self._stops = []
        if is_safe:
            self._actions = []
        for action in due:
            try:
                action()
            except Exception:  # an error must not prevent the other actions
                self._log.exception("driver_action_failed")
