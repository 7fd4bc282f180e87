"""Measure the total usage of an ended container by a parent cgroup of its own.

The engine removes a container's cgroup, with its counters, after the last process. So each
container gets its own parent in the engine's cgroup, if the engine uses the driver cgroupfs and
this process may remove cgroups there. Otherwise a container is sampled while it runs
(`CgroupSamples`).
"""

import hashlib
import os
import threading
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import structlog

from workers.attempt.runtime import ContainerView, ResourceUsage

log = structlog.get_logger(__name__)

ROOT = Path("/sys/fs/cgroup")
# The engine's default cgroup. If another parent is configured, no own parents are used.
ENGINE_GROUP = "docker"
ABANDONED_SECONDS = 86_400.0  # by then the cell that created it has read it
# Between samples of a running container: most end soon, and each sample takes two engine calls.
POLL_SECONDS = (0.2, 1.0, 2.0, 5.0, 10.0, 30.0)


class Cgroups:
    """Parent cgroups of one cell's containers, by uid; none before `settle`, or if unsupported."""

    def __init__(self, *, installation: str, cell: str, root: Path = ROOT) -> None:
        digest = hashlib.sha256(f"{installation}/{cell}".encode()).hexdigest()[:12]
        self._prefix = f"cellrun-{digest}-"
        self._root = root
        self._controllers: tuple[Path, ...] = ()
        self._memory = self._cpu = root
        self._is_v2 = False
        self._may_appear = False
        self._is_confirmed = False

    def settle(self, info: Mapping[str, Any]) -> None:
        """Determine from the engine's `info` whether parents are possible."""
        self._controllers, self._is_confirmed = (), False
        self._may_appear = info.get("CgroupDriver") == "cgroupfs"
        self._is_v2 = (self._root / "cgroup.controllers").exists()
        self._memory = self._root if self._is_v2 else self._root / "memory"
        self._cpu = self._root if self._is_v2 else self._root / "cpuacct"
        if self._may_appear:
            self._find_engine_group()

    def _find_engine_group(self) -> None:
        """Find the engine's cgroup, which exists from its first container on."""
        if not all(os.access(path / ENGINE_GROUP, os.W_OK) for path in (self._memory, self._cpu)):
            return
        names = [""] if self._is_v2 else os.listdir(self._root)
        folders = [self._root / name for name in names]
        self._controllers = tuple({path.resolve() for path in folders if path.is_dir()})
        self._may_appear = False

    def parent(self, uid: str) -> str:
        """Return the parent for a new container; "": the engine's default."""
        if self._may_appear:
            self._find_engine_group()
        return f"/{ENGINE_GROUP}/{self._name(uid)}" if self._controllers else ""

    def sample(self, uid: str) -> None:
        """Check after a start that the parent exists; if not, the engine has other cgroups."""
        if self._controllers and not self._is_confirmed:
            self._is_confirmed = self._folder(self._memory, uid).exists()
            if not self._is_confirmed:
                self._controllers = ()

    def has(self, uid: str) -> bool:
        """Return whether the container has a parent, so that its usage is known at its end."""
        return bool(self._controllers) and self._folder(self._memory, uid).exists()

    def use(self, uid: str) -> ResourceUsage | None:
        """Return the total usage of the container; None: unknown."""
        if not self._controllers:
            return None
        memory, cpu = self._folder(self._memory, uid), self._folder(self._cpu, uid)
        return _read_v2(memory) if self._is_v2 else _read_v1(memory, cpu)

    def remove(self, uid: str) -> None:
        """Remove the parent of a removed container."""
        self._remove(self._name(uid))

    def list(self) -> Set[str]:
        """Return the uids that have a parent."""
        try:
            names = os.listdir(self._memory / ENGINE_GROUP) if self._controllers else ()
        except OSError:
            return set()
        return {name.removeprefix(self._prefix) for name in names if name.startswith(self._prefix)}

    def sweep(self, now: float) -> None:
        """Remove unused parents that other cells left more than a day ago."""
        folder = self._memory / ENGINE_GROUP
        try:
            names = os.listdir(folder) if self._controllers else ()
            old = [
                name
                for name in names
                if name.startswith("cellrun-")
                and (folder / name).stat().st_mtime < now - ABANDONED_SECONDS
            ]
        except OSError:  # one was removed meanwhile
            return
        for name in old:
            if not name.startswith(self._prefix):
                self._remove(name)

    def _remove(self, name: str) -> None:
        for controller in self._controllers:
            try:
                os.rmdir(controller / ENGINE_GROUP / name)
            except FileNotFoundError:
                continue
            except OSError as error:  # a process may be exiting; the reaper retries
                log.debug("cgroup_not_removed", cgroup=str(name), error=str(error))

    def _folder(self, controller: Path, uid: str) -> Path:
        return controller / ENGINE_GROUP / self._name(uid)

    def _name(self, uid: str) -> str:
        return self._prefix + uid


class CgroupSamples:
    """Usage samples of running containers without a parent cgroup of their own.

    A sample reads the container's cgroup, found by its main process. The engine's statistics are
    not used: a call takes a second and delays the detection of an end (measured with Docker 20.10).
    """

    def __init__(self, root: Path = ROOT, processes: Path = Path("/proc")) -> None:
        self._root = root
        self._processes = processes
        self._lock = threading.Lock()
        self._samples_taken: dict[str, int] = {}
        self._last_samples: dict[str, ResourceUsage] = {}

    def pause(self, uid: str) -> float:
        """Return the seconds to the next sample."""
        return POLL_SECONDS[min(self._samples_taken.get(uid, 0), len(POLL_SECONDS) - 1)]

    def sample(self, uid: str, view: ContainerView | None) -> None:
        """Sample a running container; values that cannot be read stay unknown."""
        usage = self._read(view) if view is not None and view.pid is not None else None
        with self._lock:
            self._samples_taken[uid] = self._samples_taken.get(uid, 0) + 1
            if usage is not None:
                self._last_samples[uid] = usage

    def last(self, uid: str) -> ResourceUsage | None:
        """Return the last sample, which is the highest; None: there is none."""
        return self._last_samples.get(uid)

    def forget(self, uid: str) -> None:
        """Forget a container that has ended and was reported."""
        with self._lock:
            self._samples_taken.pop(uid, None)
            self._last_samples.pop(uid, None)

    def _read(self, view: ContainerView) -> ResourceUsage | None:
        try:
            lines = (self._processes / str(view.pid) / "cgroup").read_text(encoding="ascii")
        except (OSError, UnicodeDecodeError):
            return None
        folders = {}
        for line in lines.splitlines():
            _, controllers, path = line.split(":", 2)
            # In a pid namespace the same pid may be another process, with another cgroup.
            if view.container_id in path:
                for controller in controllers.split(","):
                    folders[controller] = self._root / controller / path.lstrip("/")
        if "memory" in folders and "cpuacct" in folders:
            return _read_v1(folders["memory"], folders["cpuacct"])
        return _read_v2(folders[""]) if "" in folders else None


def _read_v1(memory: Path, cpu: Path) -> ResourceUsage | None:
    try:
        peak = int((memory / "memory.max_usage_in_bytes").read_text())
        return ResourceUsage(int((cpu / "cpuacct.usage").read_text()) / 1e9, memory_peak_bytes=peak)
    except (OSError, ValueError):
        return None


def _read_v2(folder: Path) -> ResourceUsage | None:
    """Return the usage of a cgroup v2; kernels before 5.19 have no memory peak."""
    try:
        lines = (folder / "cpu.stat").read_text().splitlines()
        cpu_microseconds = int(dict(line.split() for line in lines)["usage_usec"])
    except (OSError, ValueError, KeyError):
        return None
    try:
        return ResourceUsage(
            cpu_microseconds / 1e6, memory_peak_bytes=int((folder / "memory.peak").read_text())
        )
    except (OSError, ValueError):
        return ResourceUsage(cpu_microseconds / 1e6)
