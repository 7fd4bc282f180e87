"""The files of attempts that runners drive, as an engine.

`runner/` in an attempt's workspace holds the order, without secrets, and the last answer of its
runner. After a kill, the next process of the cell uses them to continue, or to abort unknown
attempts.
"""

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from controlplane.contract.codec import MalformedMessage
from controlplane.contract.messages.orders import GroupSpec, RunAttempt
from workers.attempt.events import FoundContainer, Launch
from workers.attempt.runtime import (
    ContainerStatus,
    ContainerView,
    CreateResult,
    EngineError,
    NoSuchContainer,
    PlacedFile,
    ResourceUsage,
)
from workers.drivers.paths import FolderEngine
from workers.drivers.runner.reconcile_loop import Paths, Wake
from workers.exec.program import ExecCommand, ExecProgram, ExecRefused
from workers.runners import records
from workers.runners.interface import Stop
from workers.runners.requests import RunnerCallTarget

UNKNOWN = "unknown"  # stop reason for an attempt that the cell has no record of


class RunnerEngine(FolderEngine):
    """An Engine (workers.attempt.runtime) as far as attempts without a process need one."""

    name = "runner"

    def __init__(self, *, home: Path, open_runner: Callable[[Launch], RunnerCallTarget]) -> None:
        """`open_runner` returns the target of the calls for an attempt."""
        super().__init__(home)
        self._open_runner = open_runner
        self._lock = threading.Lock()
        self._wakes: dict[str, Wake] = {}

    def write_order(self, launch: Launch) -> None:
        """Write the order file, from which on the attempt is known here. Raise OSError."""
        paths = self._paths(launch.uid)
        paths.folder.mkdir(parents=True, exist_ok=True)
        self.root(launch.uid).mkdir(parents=True, exist_ok=True)
        body = {"run": launch.run.body(), "spec": launch.spec.body(), "env": dict(launch.env)}
        records.write_whole(paths.order, body)

    def attach(self, uid: str, wake: Wake) -> None:
        """Let signals to this attempt wake its thread."""
        with self._lock:
            self._wakes[uid] = wake

    def detach(self, uid: str) -> None:
        """Forget the thread of an attempt."""
        with self._lock:
            self._wakes.pop(uid, None)

    def signal(self, uid: str, name: str) -> bool:
        """Have the attempt aborted, with KILL at once; False: it has no thread here."""
        with self._lock:
            wake = self._wakes.get(uid)
        if wake is None:
            return False
        wake.stop(force=name == "KILL")
        return True

    def view(self, uid: str) -> ContainerView | None:
        """Return the state of the attempt from its record."""
        paths = self._paths(uid)
        if not paths.order.exists():
            return None
        kept = records.read(paths.kept)
        if kept is None:
            return ContainerView(ContainerStatus.CREATED, "")
        return ContainerView(
            ContainerStatus.ENDED if kept.is_over else ContainerStatus.RUNNING,
            "",
            started_at=kept.started_at,
        )

    def remove(self, uid: str) -> None:
        """Abort the attempt if it has not ended, and forget it. Raise EngineError."""
        paths = self._paths(uid)
        kept = records.read(paths.kept)
        if kept is not None and not kept.is_over:
            try:
                kept, _ = self._open_runner(self._ordered(uid)).abort(kept, Stop(UNKNOWN, True))
            except Exception as error:
                raise EngineError(f"its runner: {type(error).__name__}: {error}") from error
            records.write(paths.kept, kept)
            if not kept.is_over:
                raise EngineError("its runner has not ended it yet")
        paths.order.unlink(missing_ok=True)

    def find(self) -> Iterable[FoundContainer]:
        """Return the attempts that have an order file."""
        for order in self._work.glob("*/runner/order.json"):
            uid = order.parent.parent.name
            view = self.view(uid)
            if view is not None:
                yield FoundContainer(uid, view.status is ContainerStatus.RUNNING)

    def knows(self, uid: str) -> bool:
        """Return whether the attempt has files here."""
        return self._paths(uid).folder.exists()

    def close(self) -> None:
        """Wake the waiting threads."""
        with self._lock:
            for wake in self._wakes.values():
                wake.shake()

    def _paths(self, uid: str) -> Paths:
        return Paths.of(self._work / uid)

    def _ordered(self, uid: str) -> Launch:
        try:
            body = json.loads(self._paths(uid).order.read_text(encoding="utf-8"))
            return Launch(RunAttempt.read(body["run"]), GroupSpec.read(body["spec"]), body["env"])
        except (OSError, ValueError, KeyError, MalformedMessage) as error:
            raise EngineError(f"its order cannot be read: {error}") from error

    def create(self, launch: Launch, placed: Sequence[PlacedFile]) -> CreateResult:
        """Raise NoSuchContainer."""
        raise NoSuchContainer("a runner has no container")

    def start(self, uid: str) -> None:
        """Raise NoSuchContainer."""
        raise NoSuchContainer("a runner has no container")

    def wait(self, uid: str, seconds: float) -> bool:
        """Raise NoSuchContainer."""
        raise NoSuchContainer("a runner has no container")

    def ports(self, launch: Launch) -> Mapping[str, int]:
        """Return no ports."""
        return {}

    def use(self, uid: str) -> ResourceUsage:
        """Raise NoSuchContainer: the usage outside is unknown."""
        raise NoSuchContainer("a runner has no container")

    def execute(self, launch: Launch, command: ExecCommand) -> ExecProgram:
        """Raise ExecRefused: the task's program, if any, runs outside."""
        raise ExecRefused(f"tasks of type {launch.spec.task_type} do not run on the cell itself")

    def end_programs(self, uid: str) -> None:
        """Do nothing: there are none."""

    def check(self, launch: Launch, command: Sequence[str], seconds: float) -> str:
        """Raise NoSuchContainer."""
        raise NoSuchContainer("a runner has no container")
