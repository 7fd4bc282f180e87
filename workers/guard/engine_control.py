"""The guard's control of a real engine: calls in threads, and a pidfd for each main process.

The guard opens the pidfd of a container's main process while the engine answers. The pidfd allows
signals to exactly that process even if the engine hangs or has stopped. There is no pidfd if the
engine runs on another machine or the container as another user.
"""

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

import structlog

from workers.attempt.runtime import ContainerStatus, ContainerView, EngineAway, EngineError
from workers.attempt.threads import DaemonPool
from workers.guard.decisions import ContainerFacts

log = structlog.get_logger(__name__)

# Between two inspections of a container whose lease has not expired.
INSPECTION_SECONDS = 1.0
THREADS = 8


class KillableEngine(Protocol):
    """The part of an Engine (workers.attempt.runtime) that the guard needs."""

    def view(self, uid: str) -> ContainerView | None:
        """Return the current state of the container; None: it does not exist."""

    def signal(self, uid: str, name: str) -> bool:
        """Send a signal to the main process."""

    def remove(self, uid: str) -> None:
        """Delete the container."""


class ContainerEngineControl:
    """See workers.guard.decisions.EngineControl."""

    def __init__(self, engine: KillableEngine) -> None:
        self._engine = engine
        self._pool = DaemonPool("guard", THREADS)
        self._lock = threading.Lock()
        self._known: dict[str, ContainerFacts] = {}
        self._pidfds: dict[str, int] = {}
        self._busy: set[tuple[str, str]] = set()
        self._stopping: set[str] = set()
        self._next_inspection: dict[str, float] = {}
        self._watched: set[str] = set()

    def inspect(self, uid: str, now: float) -> None:
        """See EngineControl."""
        self._watched.add(uid)
        # A pidfd shows the end without the engine.
        if uid not in self._pidfds and now >= self._next_inspection.get(uid, 0.0):
            self._next_inspection[uid] = now + INSPECTION_SECONDS
            self._submit("inspect", uid, self._inspect)

    def known(self, uid: str) -> ContainerFacts:
        """See EngineControl."""
        with self._lock:
            if self._known.get(uid) is ContainerFacts.THERE and _is_over(self._pidfds.get(uid)):
                self._known[uid] = ContainerFacts.OVER
            return self._known.get(uid, ContainerFacts.NOTHING)

    def stop(self, uid: str, signal_name: str) -> None:
        """See EngineControl."""
        self._watched.add(uid)
        if uid in self._stopping:
            return
        if self._send(uid, _number(signal_name)):
            self._stopping.add(uid)
        else:
            self._submit("stop", uid, partial(self._stop, signal_name=signal_name))

    def kill(self, uid: str) -> None:
        """See EngineControl."""
        self._watched.add(uid)
        self._send(uid, signal.SIGKILL)
        self._submit("kill", uid, self._kill)

    def forget(self, uid: str) -> None:
        """See EngineControl."""
        with self._lock:
            self._watched.discard(uid)
            self._known.pop(uid, None)
            self._stopping.discard(uid)
            self._next_inspection.pop(uid, None)
            pidfd = self._pidfds.pop(uid, None)
            if pidfd is not None:
                os.close(pidfd)

    def _submit(self, what: str, uid: str, work: Callable[[str], object]) -> None:
        """Run `work` in a thread, unless the same call is pending, as in an engine that hangs."""
        call = (what, uid)
        with self._lock:
            if call in self._busy:
                return
            self._busy.add(call)

        def run() -> None:
            try:
                work(uid)
            except (EngineAway, EngineError) as error:
                log.warning("engine_call_failed", call=what, attempt=uid, error=str(error))
            finally:
                with self._lock:
                    self._busy.discard(call)

        self._pool.submit(run)

    def _inspect(self, uid: str) -> ContainerView | None:
        view = self._engine.view(uid)
        pidfd = None if view is None or uid in self._pidfds else _open_pidfd(view)
        with self._lock:
            if uid not in self._watched or uid in self._pidfds:
                if pidfd is not None:
                    os.close(pidfd)
            elif pidfd is not None:
                self._pidfds[uid] = pidfd
            if uid in self._watched:
                self._known[uid] = _known(view)
        return view

    def _stop(self, uid: str, signal_name: str) -> None:
        if self._engine.signal(uid, signal_name):
            self._stopping.add(uid)
        else:
            self._inspect(uid)

    def _kill(self, uid: str) -> None:
        view = self._inspect(uid)
        if view is None or view.status is ContainerStatus.ENDED:
            return
        if view.status is ContainerStatus.CREATED:
            # Removal makes a pending start fail.
            log.info("removed_before_start", attempt=uid)
            self._engine.remove(uid)
        else:
            self._engine.signal(uid, "KILL")
        self._inspect(uid)

    def _send(self, uid: str, number: int) -> bool:
        """Send a signal by the pidfd; return False if there is none."""
        with self._lock:
            pidfd = self._pidfds.get(uid)
            if pidfd is None:
                return False
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, number)
            return True


def _known(view: ContainerView | None) -> ContainerFacts:
    if view is None:
        return ContainerFacts.ABSENT
    return ContainerFacts.OVER if view.status is ContainerStatus.ENDED else ContainerFacts.THERE


def _open_pidfd(view: ContainerView) -> int | None:
    """Return a pidfd of the container's main process; None if it is not certainly that process."""
    if view.pid is None or view.status is not ContainerStatus.RUNNING:
        return None
    try:
        pidfd = os.pidfd_open(view.pid)
    except (AttributeError, OSError):
        return None
    try:
        # Checked after the open, so that the pidfd cannot refer to a later process of the same pid.
        # In a pid namespace the pid may be another process, with another cgroup.
        cgroups = Path(f"/proc/{view.pid}/cgroup").read_text(encoding="ascii", errors="replace")
        if view.container_id in cgroups and not _is_over(pidfd):
            signal.pidfd_send_signal(pidfd, 0)
            return pidfd
    except OSError:
        pass
    os.close(pidfd)
    return None


def _is_over(pidfd: int | None) -> bool:
    if pidfd is None:
        return False
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def _number(name: str) -> int:
    plain = name.removeprefix("SIG")
    if plain.isdecimal():
        return int(plain)
    return signal.Signals.__members__.get(f"SIG{plain}", signal.SIGTERM)
