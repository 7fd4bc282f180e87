"""A cell's driver with scripted runners that record their calls."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.conformance.kit import ProcessKit, until
from tests.conformance.outside import Outside
from workers.attempt.events import DriverEvent, Launch, ReconciledEvent
from workers.drivers.base import Driver
from workers.drivers.process.engine import ProcessEngine
from workers.drivers.registry import make_pipeline
from workers.drivers.runner.driver import InstalledRunners
from workers.runners.interface import (
    CALL_SECONDS,
    AbortResult,
    Context,
    Runner,
    RunnerObservation,
    RunnerPhase,
)

Step = Callable[[Context], RunnerObservation]


class Scripted:
    """A runner whose answers a test sets, and which records its calls."""

    def __init__(self, reconcile: Step | None = None) -> None:
        self.step: Step = reconcile or (
            lambda context: RunnerObservation(RunnerPhase.RUNNING, poll_seconds=0.05)
        )
        self.end: Callable[[Context], AbortResult] = lambda context: AbortResult(is_done=True)
        self.contexts: list[Context] = []
        self.aborts: list[Context] = []
        self._lock = threading.Lock()

    def reconcile(self, context: Context) -> RunnerObservation:
        with self._lock:
            self.contexts.append(context)
        return self.step(context)

    def abort(self, context: Context) -> AbortResult:
        with self._lock:
            self.aborts.append(context)
        return self.end(context)


class RunnerKit(ProcessKit):
    """A cell with the driver `process` and one runner, `scripted`."""

    def __init__(
        self, home: Path, outside: Outside, runners: Mapping[str, Runner], call_seconds: float
    ) -> None:
        self.outside = outside
        self.call_seconds = call_seconds
        self.runners = runners
        super().__init__(home)

    def config(self, **changes: Any) -> Any:
        given = {"control_url": self.outside.url, "file_roots": (self.home.parent,)}
        return super().config(**{**given, **changes})

    def make(self) -> Driver:
        config = self.config()
        engine = ProcessEngine(home=self.home, max_log_bytes=config.max_log_bytes)
        offered = InstalledRunners(self.runners, self.call_seconds)
        return make_pipeline(engine, config, self.events, (0.05, 0.1), offered)

    def launch(self, *command: str, **spec: Any) -> Launch:
        return super().launch(*command, **{"task_type": "scripted", **spec})

    def reported_phases(self, uid: str) -> list[str]:
        """Return the reported phases in order, without repetitions."""
        phases = [
            event.phase for event in self.events.of(uid) if isinstance(event, ReconciledEvent)
        ]
        return [phase for at, phase in enumerate(phases) if at == 0 or phases[at - 1] != phase]

    def last_state(self, uid: str) -> Mapping[str, Any]:
        """Return the last reported state."""
        states = [
            event.state for event in self.events.of(uid) if isinstance(event, ReconciledEvent)
        ]
        return states[-1]

    def kinds(self, uid: str) -> list[type[DriverEvent]]:
        """Return the types of the events in order, without those of reconciling."""
        return [type(e) for e in self.events.of(uid) if not isinstance(e, ReconciledEvent)]


@contextlib.contextmanager
def runner_kit(
    home: Path, outside: Outside, *, call_seconds: float = CALL_SECONDS, **runners: Runner
) -> Iterator[RunnerKit]:
    """A kit, and nothing left of it afterwards."""
    kit = RunnerKit(home / "cell", outside, runners, call_seconds)
    try:
        yield kit
    finally:
        kit.close()


__all__ = ["RunnerKit", "Scripted", "runner_kit", "until"]
