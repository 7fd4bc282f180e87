"""Route attempts to one of two drivers: by task type to the runners, else to the engine."""

from collections.abc import Iterable
from itertools import chain

from workers.attempt.events import FoundContainer, Launch
from workers.drivers.pipeline import PipelineDriver
from workers.drivers.runner.driver import RunnerDriver
from workers.exec.program import ExecCommand, ExecProgram


class RoutedDriver:
    """See workers.drivers.base for its interface."""

    def __init__(self, own: PipelineDriver, runners: RunnerDriver) -> None:
        """Create a router; `own`, the driver of the engine, shares its context with `runners`."""
        self.name = own.name
        self._own = own
        self._runners = runners

    def start(self, launch: Launch) -> None:
        """Begin the attempt in the driver of its task type."""
        self._of(launch).start(launch)

    def adopt(self, launch: Launch) -> None:
        """Take charge again, also of an attempt whose runner is not installed any more."""
        self._of(launch).adopt(launch)

    def stop(self, uid: str, *, grace_seconds: float, force: bool) -> None:
        """Stop the attempt in both drivers; the one that is not in charge ignores the call."""
        for driver in (self._own, self._runners):
            driver.stop(uid, grace_seconds=grace_seconds, force=force)

    def execute(self, command: ExecCommand) -> ExecProgram:
        """Start a program in the driver that has the attempt. Raise ExecRefused."""
        is_theirs = self._runners.knows(command.attempt)
        return (self._runners if is_theirs else self._own).execute(command)

    def find(self) -> Iterable[FoundContainer]:
        """Return the containers of both drivers. Raise EngineAway."""
        return list(chain(self._own.find(), self._runners.find()))

    def remove(self, uid: str) -> None:
        """Remove the attempt in the driver that has its files."""
        if self._runners.knows(uid):
            self._runners.remove(uid)
        else:
            self._own.remove(uid)

    def close(self) -> None:
        """Close both drivers."""
        self._runners.close()
        self._own.close()

    def _of(self, launch: Launch) -> PipelineDriver:
        is_theirs = self._runners.runners.offers(launch.spec.task_type)
        if is_theirs or self._runners.knows(launch.uid):
            return self._runners
        return self._own
