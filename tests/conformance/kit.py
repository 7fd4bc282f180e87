"""One kit per driver: how to begin again after a death, what to run, how outsiders meddle."""

import contextlib
import os
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker

from controlplane.contract.messages.orders import GroupSpec, RunAttempt
from controlplane.contract.states import Phase
from workers import clock
from workers.attempt.events import BuildingEvent, DriverEvent, EndedEvent, Launch, StartedEvent
from workers.config import CellConfig
from workers.drivers.base import Driver
from workers.drivers.memory import MemoryDriver, MemoryEngine
from workers.drivers.process.engine import ProcessEngine
from workers.drivers.registry import make_driver

SECONDS = 60.0  # a deadline for what takes a moment: the machine may be busy with other tests
IMAGE = "cellrun/demo:latest"
INSTALLATION = "conformance"


def until(condition: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """The first true value of `condition`; fails after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError("it did not happen in time")


class Recorder:
    """A listener that keeps the events of a driver."""

    def __init__(self) -> None:
        self._events: list[DriverEvent] = []
        self._changed = threading.Condition()

    def __call__(self, event: DriverEvent) -> None:
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()

    def of(self, uid: str) -> list[DriverEvent]:
        with self._changed:
            return [event for event in self._events if event.uid == uid]

    def started(self, uid: str) -> StartedEvent:
        return self._first(uid, StartedEvent)

    def building(self, uid: str) -> BuildingEvent:
        return self._first(uid, BuildingEvent)

    def phase(self, uid: str, phase: Phase) -> None:
        """Return when the driver reports that the attempt enters `phase`."""
        self._wait(uid, lambda event: isinstance(event, BuildingEvent) and event.phase is phase)

    def ended(self, uid: str, seconds: float = SECONDS) -> EndedEvent:
        return self._first(uid, EndedEvent, seconds)

    def _first(self, uid: str, kind: type[Any], seconds: float = SECONDS) -> Any:
        return self._wait(uid, lambda event: isinstance(event, kind), seconds)

    def _wait(
        self, uid: str, fits: Callable[[DriverEvent], bool], seconds: float = SECONDS
    ) -> DriverEvent:
        def found() -> list[DriverEvent]:
            return [event for event in self._events if event.uid == uid and fits(event)]

        with self._changed:
            assert self._changed.wait_for(found, seconds), f"not reported: {self._events}"
            return found()[0]


class Kit:
    """What the suite needs of every driver."""

    name = ""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.events = Recorder()
        self.driver = self.make()

    def config(self, **changes: Any) -> CellConfig:
        return CellConfig(
            **{
                "name": "cell-1",
                "key": b"k" * 32,
                "home": self.home,
                "broker_url": "redis://127.0.0.1:1/0",
                "control_url": "",
                "installation": INSTALLATION,
                "capacity": {},
                "driver": self.name,
                **changes,
            }
        )

    def make(self) -> Driver:
        return make_driver(self.config(), self.events, back_off=(0.05, 0.1))

    def begin_again(self) -> None:
        """The cell process dies, and its successor finds the same home and the same engine."""
        self.driver.close()
        self.events = Recorder()
        self.driver = self.make()

    def launch(self, *command: str, number: int = 1, uid: str = "", **spec: Any) -> Launch:
        uid = uid or str(uuid.uuid4())
        group = GroupSpec(
            id=1,
            job_name="suite",
            group="main",
            replicas=1,
            command=command,
            **{"job_id": 7, "image": IMAGE, "network": "none", **spec},
        )
        run = RunAttempt(uid, 1, 11, 0, number, clock.wall_seconds() + 60)
        return Launch(run, group, {"CELLRUN_ATTEMPT_UID": uid})

    def close(self) -> None:
        for found in list(self.driver.find()):
            self.driver.remove(found.uid)
        until(lambda: not list(self.driver.find()))
        self.driver.close()

    # What to run.

    def sleeps(self, seconds: float, then_exit: int = 0) -> tuple[str, ...]:
        return ("sh", "-c", f"{self.count} sleep {seconds} & wait; exit {then_exit}")

    def deaf(self, seconds: float) -> tuple[str, ...]:
        script = f"{self.count} trap '' TERM; echo ready; sleep {seconds} & wait; wait"
        return ("sh", "-c", script)

    def obedient(self, signal_name: str = "TERM") -> tuple[str, ...]:
        script = f"{self.count} trap 'exit 143' {signal_name}; echo ready; sleep 300 & wait"
        return ("sh", "-c", script)

    def exits(self, code: int) -> tuple[str, ...]:
        return ("sh", "-c", f"{self.count} exit {code}")

    count = ""  # shell words that leave a trace of a start

    # What outsiders do and see.

    def wait_until_ready(self, uid: str) -> None:
        """Its trap is set."""
        until(lambda: "ready" in self.log(uid))

    def log(self, uid: str, stream: str = "stdout") -> str:
        path = self.home / "logs" / uid / stream
        return path.read_bytes().decode("utf-8", "replace") if path.exists() else ""

    def kill_outside(self, uid: str) -> None:
        raise NotImplementedError

    def remove_outside(self, uid: str) -> None:
        raise NotImplementedError

    def starts(self, uid: str) -> int:
        raise NotImplementedError


class DockerKit(Kit):
    """Real containers."""

    name = "docker"

    def __init__(self, home: Path) -> None:
        self.outside = docker.APIClient(version="auto")
        self.installation = f"{INSTALLATION}-{uuid.uuid4().hex[:8]}"
        super().__init__(home)

    def config(self, **changes: Any) -> CellConfig:
        return super().config(**{"installation": self.installation, **changes})

    def close(self) -> None:
        super().close()
        self.outside.close()

    def inspect(self, uid: str) -> dict[str, Any]:
        return dict(self.outside.inspect_container(f"cellrun-{uid}"))

    def kill_outside(self, uid: str) -> None:
        self.outside.kill(f"cellrun-{uid}", "SIGKILL")

    def remove_outside(self, uid: str) -> None:
        self.outside.remove_container(f"cellrun-{uid}", force=True)

    def starts(self, uid: str) -> int:
        filters = {"event": ["start"], "label": [f"cellrun.attempt={uid}"]}
        now = clock.wall_seconds()
        window = {"since": f"{now - 600:.9f}", "until": f"{now:.9f}"}
        stream = self.outside.events(**window, filters=filters, decode=True)
        with contextlib.closing(stream):
            return len(list(stream))


class ProcessKit(Kit):
    """Real processes."""

    name = "process"

    def __init__(self, home: Path) -> None:
        self.count = f"echo start >> {home}/starts-$CELLRUN_ATTEMPT_UID;"
        super().__init__(home)

    def pid(self, uid: str) -> int:
        """Of the task's first process."""
        with contextlib.closing(ProcessEngine(home=self.home, max_log_bytes=0)) as engine:
            view = engine.view(uid)
        assert view is not None
        assert view.pid is not None
        return view.pid

    def spawner(self) -> int:
        return int((self.home / "spawner" / "lock").read_text())

    def kill_outside(self, uid: str) -> None:
        os.kill(self.pid(uid), signal.SIGKILL)

    def remove_outside(self, uid: str) -> None:
        os.kill(self.spawner(), signal.SIGKILL)

    def starts(self, uid: str) -> int:
        path = self.home / f"starts-{uid}"
        return path.read_text().count("start") if path.exists() else 0


class MemoryKit(Kit):
    """Pretended attempts."""

    name = "memory"

    def __init__(self, home: Path) -> None:
        self.engine = MemoryEngine()
        super().__init__(home)

    def make(self) -> Driver:
        return MemoryDriver(
            self.events, clock=clock.wall_seconds, engine=self.engine, threaded=True
        )

    def sleeps(self, seconds: float, then_exit: int = 0) -> tuple[str, ...]:
        return ("sleep", str(seconds), "exit", str(then_exit))

    def deaf(self, seconds: float) -> tuple[str, ...]:
        return ("deaf", "sleep", str(seconds))

    def exits(self, code: int) -> tuple[str, ...]:
        return ("exit", str(code))

    def obedient(self, signal_name: str = "TERM") -> tuple[str, ...]:
        return ("sleep", "300")

    def wait_until_ready(self, uid: str) -> None:
        self.events.started(uid)

    def kill_outside(self, uid: str) -> None:
        self.engine.kill_outside(uid, clock.wall_seconds())

    def remove_outside(self, uid: str) -> None:
        self.engine.lose(uid, clock.wall_seconds())

    def starts(self, uid: str) -> int:
        return self.engine.starts[uid]


KITS: dict[str, type[Kit]] = {kit.name: kit for kit in (DockerKit, ProcessKit, MemoryKit)}


@contextlib.contextmanager
def made_kit(name: str, home: Path) -> Iterator[Kit]:
    """A kit, and nothing left of it afterwards."""
    kit = KITS[name](home)
    try:
        yield kit
    finally:
        kit.close()
        shutil.rmtree(home, ignore_errors=True)
