"""One driver of two: attempts of a runner's task type go to runners, all others to the engine."""

from collections.abc import Iterable
from itertools import chain

from workers.attempt.events import FoundContainer, Launch
from workers.drivers.pipeline import PipelineDriver
from workers.drivers.runner.driver import RunnerDriver


class RoutedDriver:
    """See workers.drivers.base for what it promises."""

    def __init__(self, own: PipelineDriver, runners: RunnerDriver) -> None:
        """`own`: of the cell's engine; they share their surroundings."""
        self.name = own.name
        self._own = own
        self._runners = runners

    def start(self, launch: Launch) -> None:
        """Begin the attempt where its type belongs."""
        self._of(launch).start(launch)

    def adopt(self, launch: Launch) -> None:
        """Take charge again, also of an attempt whose runner is not offered any more."""
        self._of(launch).adopt(launch)

    def stop(self, uid: str, *, grace_seconds: float, force: bool) -> None:
        """A driver that is not in charge ignores the call."""
        for driver in (self._own, self._runners):
            driver.stop(uid, grace_seconds=grace_seconds, force=force)

    def find(self) -> Iterable[FoundContainer]:
        """What both have. Raises EngineAway."""
        return list(chain(self._own.find(), self._runners.find()))

    def remove(self, uid: str) -> None:
        """Delete what is left, where something is."""
        if self._runners.knows(uid):
            self._runners.remove(uid)
        else:
            self._own.remove(uid)

    def close(self) -> None:
        """Let go of both."""
        self._runners.close()
        self._own.close()

    def _of(self, launch: Launch) -> PipelineDriver:
        is_theirs = self._runners.runners.offers(launch.spec.task_type)
        if is_theirs or self._runners.knows(launch.uid):
            return self._runners
        return self._own
