"""Measure what a container has used in all, after its end, by a control group around its own.

The engine removes a container's group, with its counters, after the last process. So each container
gets its own parent in the engine's group, where the engine creates groups itself (its driver
cgroupfs) and this process may remove them. Elsewhere a container is sampled while it runs; see
`CgroupSamples`.
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
# Where the engine has its containers. If another parent is configured, containers stay there.
ENGINE_GROUP = "docker"
ABANDONED_SECONDS = 86_400.0  # seconds: by then its creator has read it
# Between samples of a running container: most end soon, and each costs the engine two calls.
POLL_SECONDS = (0.2, 1.0, 2.0, 5.0, 10.0, 30.0)


class Cgroups:
    """The parents of one cell's containers, by uid. Until `settle`, and where none can be: none."""

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
        """Find out from the engine's own description whether parents are possible."""
        self._controllers, self._is_confirmed = (), False
        self._may_appear = info.get("CgroupDriver") == "cgroupfs"
        self._is_v2 = (self._root / "cgroup.controllers").exists()
        self._memory = self._root if self._is_v2 else self._root / "memory"
        self._cpu = self._root if self._is_v2 else self._root / "cpuacct"
        if self._may_appear:
            self._find_engine_group()

    def _find_engine_group(self) -> None:
        """The engine makes its group with its first container."""
        if not all(os.access(path / ENGINE_GROUP, os.W_OK) for path in (self._memory, self._cpu)):
            return
        names = [""] if self._is_v2 else os.listdir(self._root)
        folders = [self._root / name for name in names]
        self._controllers = tuple({path.resolve() for path in folders if path.is_dir()})
        self._may_appear = False

    def parent(self, uid: str) -> str:
        """The parent for a container that is to be created; empty: the engine's own."""
        if self._may_appear:
            self._find_engine_group()
        return f"/{ENGINE_GROUP}/{self._name(uid)}" if self._controllers else ""

    def sample(self, uid: str) -> None:
        """A container of that parent was started: if nothing is seen, the engine is elsewhere."""
        if self._controllers and not self._is_confirmed:
            self._is_confirmed = self._folder(self._memory, uid).exists()
            if not self._is_confirmed:
                self._controllers = ()

    def has(self, uid: str) -> bool:
        """Whether what its container uses will be known at its end."""
        return bool(self._controllers) and self._folder(self._memory, uid).exists()

    def use(self, uid: str) -> ResourceUsage | None:
        """Return what the containers of that parent used in all; None: unknown."""
        if not self._controllers:
            return None
        memory, cpu = self._folder(self._memory, uid), self._folder(self._cpu, uid)
        return _read_v2(memory) if self._is_v2 else _read_v1(memory, cpu)

    def remove(self, uid: str) -> None:
        """The container is gone: so goes its parent."""
        self._remove(self._name(uid))

    def list(self) -> Set[str]:
        """The uids that have a parent."""
        try:
            names = os.listdir(self._memory / ENGINE_GROUP) if self._controllers else ()
        except OSError:
            return set()
        return {name.removeprefix(self._prefix) for name in names if name.startswith(self._prefix)}

    def sweep(self, now: float) -> None:
        """Remove what cells that are gone for good left a day ago; what is in use, stays."""
        folder = self._memory / ENGINE_GROUP
        try:
            names = os.listdir(folder) if self._controllers else ()
            old = [
                name
                for name in names
                if name.startswith("cellrun-")
                and (folder / name).stat().st_mtime < now - ABANDONED_SECONDS
            ]
        except OSError:  # one of them went meanwhile
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
            except OSError as error:  # a process may be on its way out: the reaper comes again
                log.debug("cgroup_not_removed", cgroup=str(name), error=str(error))

    def _folder(self, controller: Path, uid: str) -> Path:
        return controller / ENGINE_GROUP / self._name(uid)

    def _name(self, uid: str) -> str:
        return self._prefix + uid


class CgroupSamples:
    """Samples of containers while they ran, where they have no parent of their own.

    Their own groups are read, found by their main process. The engine's statistics are not used: a
    call takes a second, in which an end would stay unnoticed (measured with Docker 20.10).
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
        """What was seen last, which is the most; None: nothing was."""
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
            # In a namespace of our own the same number is another process, and has another group.
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
    """Kernels before 5.19 keep no peak."""
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
