"""The files of attempts that runners drive, as an engine.

`runner/` in an attempt's workspace has the order, without secrets, and the last answer of its
runner: with these the successor of a killed cell continues, or ends unknown attempts.
"""

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from controlplane.contract.codec import MalformedMessage
from controlplane.contract.messages.launch_context import Registry
from controlplane.contract.messages.orders import GroupSpec, RunAttempt
from workers.attempt.capture import Capture
from workers.attempt.disk import bytes_below
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
from workers.attempt.transfer.tars import Take
from workers.drivers.paths import place_below, read_head_below, restore_below, save_below
from workers.drivers.runner.reconcile_loop import Paths, Wake
from workers.runners import records
from workers.runners.interface import Stop
from workers.runners.requests import RunnerCallTarget

UNKNOWN = "unknown"  # why an attempt is aborted that its cell does not know


class RunnerEngine:
    """An Engine (workers.attempt.runtime) as far as attempts without a process need one."""

    name = "runner"
    needs_image = False
    keeps_logs = False

    def __init__(self, *, home: Path, open_runner: Callable[[Launch], RunnerCallTarget]) -> None:
        """`open_runner` returns the target of the calls for an attempt."""
        self._work = home.absolute() / "work"
        self._open_runner = open_runner
        self._lock = threading.Lock()
        self._wakes: dict[str, Wake] = {}

    def root(self, uid: str) -> Path:
        """Below it stands every path of the task."""
        return self._work / uid / "root"

    def write_order(self, launch: Launch) -> None:
        """From now on the attempt is known here. Raises OSError."""
        paths = self._paths(launch.uid)
        paths.folder.mkdir(parents=True, exist_ok=True)
        self.root(launch.uid).mkdir(parents=True, exist_ok=True)
        body = {"run": launch.run.body(), "spec": launch.spec.body(), "env": dict(launch.env)}
        records.write_whole(paths.order, body)

    def attach(self, uid: str, wake: Wake) -> None:
        """Signals to this attempt wake its thread."""
        with self._lock:
            self._wakes[uid] = wake

    def detach(self, uid: str) -> None:
        """Its thread has done with it."""
        with self._lock:
            self._wakes.pop(uid, None)

    def signal(self, uid: str, name: str) -> bool:
        """Have the attempt aborted, with KILL at once; False: nothing of it runs here."""
        with self._lock:
            wake = self._wakes.get(uid)
        if wake is None:
            return False
        wake.stop(force=name == "KILL")
        return True

    def view(self, uid: str) -> ContainerView | None:
        """How far the attempt is, as it was kept."""
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

    def put(self, launch: Launch, placed: Sequence[PlacedFile]) -> None:
        """Copy, or link what is bound, below the attempt's root."""
        place_below(self.root(launch.uid), placed)

    def read_head(self, launch: Launch, path: str, limit: int) -> bytes | None:
        """The head of a regular file; a link is not followed."""
        return read_head_below(self.root(launch.uid), path, limit)

    def save(self, launch: Launch, path: str, target: Path, take: Take) -> bool:
        """Pack what lies below the attempt's root."""
        return save_below(self.root(launch.uid), path, target, take)

    def restore(self, launch: Launch, path: str, source: Path) -> None:
        """Unpack below the attempt's root."""
        restore_below(self.root(launch.uid), path, source)

    def remove(self, uid: str) -> None:
        """Have it aborted if it is not over, and forget it. Raises EngineError."""
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
        """The attempts that have an order here."""
        for order in self._work.glob("*/runner/order.json"):
            uid = order.parent.parent.name
            view = self.view(uid)
            if view is not None:
                yield FoundContainer(uid, view.status is ContainerStatus.RUNNING)

    def knows(self, uid: str) -> bool:
        """Whether anything is left here of an attempt."""
        return self._paths(uid).folder.exists()

    def close(self) -> None:
        """Wake the waiting thread."""
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

    def find_image(self, image: str) -> str | None:
        """No image is needed."""
        return ""

    def pull(
        self, image: str, on_progress: Callable[[int], None], registry: Registry | None = None
    ) -> int:
        """No image is needed."""
        return 0

    def create(self, launch: Launch, placed: Sequence[PlacedFile]) -> CreateResult:
        """There is no container."""
        raise NoSuchContainer("a runner has no container")

    def start(self, uid: str) -> None:
        """There is no container."""
        raise NoSuchContainer("a runner has no container")

    def wait(self, uid: str, seconds: float) -> bool:
        """There is no container."""
        raise NoSuchContainer("a runner has no container")

    def ports(self, launch: Launch) -> Mapping[str, int]:
        """There are none."""
        return {}

    def disk_bytes(self, uid: str) -> int:
        """All that lies in the attempt's own folder."""
        return bytes_below(self.root(uid))

    def host(self, launch: Launch, address: str) -> str:
        """Return no addresses."""
        return address

    def use(self, uid: str) -> ResourceUsage:
        """Return None: its use elsewhere is unknown."""
        raise NoSuchContainer("a runner has no container")

    def check(self, launch: Launch, command: Sequence[str], seconds: float) -> str:
        """There is no container."""
        raise NoSuchContainer("a runner has no container")

    def was_stopped(self, launch: Launch, view: ContainerView) -> bool:
        """There is no process to send signals to."""
        return False

    def copy_logs(self, uid: str, capture: Capture, *, follow: bool) -> None:
        """Nothing to copy: its lines are written where they belong."""
