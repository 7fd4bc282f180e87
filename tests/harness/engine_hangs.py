"""Restart an engine that hangs, and repeat the tests that it failed.

Docker Engine before 24.0.7 may deadlock when a container joins a network that its last container
leaves (moby/moby#46661): it then answers no request, and every later test of the run would fail.
A test that failed for any other reason is not repeated.
"""

import fcntl
import os
import re
import signal
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from typing import Protocol

import docker
import pytest
import requests

from controlplane.config.stack.parts.engine import DOCKER_SOCKET, PID_FILE, require_engine

ANSWER_SECONDS = 60
END_SECONDS = 20.0
DUMP_SECONDS = 5.0
RUN_FOLDER = Path("/var/run/docker")
CONTAINERD_PID_FILE = RUN_FOLDER / "containerd" / "containerd.pid"
LINES_OF_DUMP = 60


class Engine(Protocol):
    """What repeating tests needs of an engine."""

    def hangs(self) -> bool:
        """Return whether the engine leaves a request unanswered."""

    def restart(self) -> str:
        """Replace the engine by a new one and return where its threads were blocked."""

    def started_at(self) -> float:
        """Return when the engine started, in seconds of the epoch; 0 if unknown."""

    def locked(self) -> AbstractContextManager[None]:
        """Exclude the other processes of the run within the block."""


class MachineEngine:
    """The dockerd that `make` started."""

    def hangs(self) -> bool:
        """Return whether the engine leaves a list of containers or networks unanswered."""
        try:
            client = docker.APIClient(
                base_url=f"unix://{DOCKER_SOCKET}", version="1.41", timeout=ANSWER_SECONDS
            )
            with closing(client):
                client.containers(all=True)
                client.networks()
        except requests.Timeout:
            # Only root can replace it.
            return os.geteuid() == 0 and self._pid(PID_FILE) is not None
        except (docker.errors.DockerException, requests.RequestException):
            return False
        return False

    def restart(self) -> str:
        """Kill dockerd and its containerd, start them, and return the blocked goroutines."""
        blocked = self._blocked_goroutines()
        for file in (PID_FILE, CONTAINERD_PID_FILE):
            pid = self._pid(file)
            if pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                _wait_until_gone(pid)
        require_engine(lambda text: None)
        return blocked

    def started_at(self) -> float:
        """Return the time of the pid file, which dockerd writes when it starts."""
        with suppress(OSError):
            return PID_FILE.stat().st_mtime
        return 0.0

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold a lock that all processes of the run share."""
        with (Path(tempfile.gettempdir()) / "cellrun-tests-engine.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _blocked_goroutines(self) -> str:
        pid = self._pid(PID_FILE)
        before = set(RUN_FOLDER.glob("goroutine-stacks-*.log"))
        if pid is None:
            return ""
        os.kill(pid, signal.SIGUSR1)
        give_up = time.monotonic() + DUMP_SECONDS
        while time.monotonic() < give_up:
            for path in set(RUN_FOLDER.glob("goroutine-stacks-*.log")) - before:
                return summary_of_dump(path.read_text(errors="replace"))
            time.sleep(0.2)
        return "it wrote no dump of its goroutines"

    def _pid(self, file: Path) -> int | None:
        with suppress(OSError, ValueError):
            return int(file.read_text())
        return None


def summary_of_dump(dump: str) -> str:
    """Return the names of functions of goroutines that wait for a lock, one goroutine per line."""
    lines = []
    for goroutine in dump.split("\n\n"):
        head, _, rest = goroutine.partition("\n")
        if "semacquire" in head or "sync." in head:
            names = re.findall(r"^(?:[\w.-]+/)*([^\s/]+)\(", rest, re.MULTILINE)
            lines.append(f"{head} {' < '.join(names[:9])}")
    return "\n".join(lines[:LINES_OF_DUMP])


def _wait_until_gone(pid: int) -> None:
    give_up = time.monotonic() + END_SECONDS
    while time.monotonic() < give_up:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state == "Z":
            return
        time.sleep(0.05)


class EngineHangs:
    """Decides whether a failed test of the engine runs again."""

    def __init__(self, engine: Engine | None = None) -> None:
        self._engine = engine or MachineEngine()
        self._began: dict[str, float] = {}

    def watch(self, item: pytest.Item) -> None:
        """Repeat a test once if it failed while the engine hung."""
        item.add_marker(
            pytest.mark.flaky(reruns=1, condition=lambda error: self.failed(item.nodeid))
        )

    def begin(self, nodeid: str, now: float) -> None:
        """Note when a test began."""
        self._began[nodeid] = now

    def failed(self, nodeid: str) -> bool:
        """Return whether the engine hangs, after a restart of it, or was restarted since."""
        with self._engine.locked():
            if self._engine.started_at() > self._began.get(nodeid, float("inf")):
                return True
            if not self._engine.hangs():
                return False
            blocked = self._engine.restart()
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn(
                f"the engine hung and was restarted during {nodeid}; its waiting goroutines:\n"
                f"{blocked}",
                stacklevel=2,
            )
        return True


HANGS = EngineHangs()
