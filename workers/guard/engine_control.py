"""The guard's control of a real engine: calls in threads, and a grip on each process.

The grip is a descriptor of the container's main process, taken while the engine answers: through it
the kernel carries a signal to that process and no other, though the engine be hung, stopped or
gone. There is none where the engine is another machine's, or the container another user's.
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

# Between two checks of a container whose lease has not expired.
INSPECTION_SECONDS = 1.0
THREADS = 8


class KillableEngine(Protocol):
    """What is needed of an Engine (workers.attempt.runtime)."""

    def view(self, uid: str) -> ContainerView | None:
        """The container now; None: there is none."""

    def signal(self, uid: str, name: str) -> bool:
        """Send a signal to the main process."""

    def remove(self, uid: str) -> None:
        """Delete the container."""


class ContainerEngineControl:
    """See workers.guard.decisions.EngineControl."""

    def __init__(self, reach: KillableEngine) -> None:
        self._reach = reach
        self._pool = DaemonPool("guard", THREADS)
        self._lock = threading.Lock()
        self._known: dict[str, ContainerFacts] = {}
        self._grips: dict[str, int] = {}
        self._busy: set[tuple[str, str]] = set()
        self._stopping: set[str] = set()
        self._next_inspection: dict[str, float] = {}
        self._watched: set[str] = set()

    def inspect(self, uid: str, now: float) -> None:
        """See Hands."""
        self._watched.add(uid)
        # The grip shows the end without the engine.
        if uid not in self._grips and now >= self._next_inspection.get(uid, 0.0):
            self._next_inspection[uid] = now + INSPECTION_SECONDS
            self._submit("look", uid, self._inspect)

    def known(self, uid: str) -> ContainerFacts:
        """See Hands."""
        with self._lock:
            if self._known.get(uid) is ContainerFacts.THERE and _is_over(self._grips.get(uid)):
                self._known[uid] = ContainerFacts.OVER
            return self._known.get(uid, ContainerFacts.NOTHING)

    def stop(self, uid: str, signal_name: str) -> None:
        """See Hands."""
        self._watched.add(uid)
        if uid in self._stopping:
            return
        if self._send(uid, _number(signal_name)):
            self._stopping.add(uid)
        else:
            self._submit("ask", uid, partial(self._stop, signal_name=signal_name))

    def kill(self, uid: str) -> None:
        """See Hands."""
        self._watched.add(uid)
        self._send(uid, signal.SIGKILL)
        self._submit("kill", uid, self._kill)

    def forget(self, uid: str) -> None:
        """See Hands."""
        with self._lock:
            self._watched.discard(uid)
            self._known.pop(uid, None)
            self._stopping.discard(uid)
            self._next_inspection.pop(uid, None)
            grip = self._grips.pop(uid, None)
            if grip is not None:
                os.close(grip)

    def _submit(self, what: str, uid: str, work: Callable[[str], object]) -> None:
        """Do `work` in a thread, unless the same is under way: an engine may be hung."""
        call = (what, uid)
        with self._lock:
            if call in self._busy:
                return
            self._busy.add(call)

        def do() -> None:
            try:
                work(uid)
            except (EngineAway, EngineError) as error:
                log.warning("engine_call_failed", call=what, attempt=uid, error=str(error))
            finally:
                with self._lock:
                    self._busy.discard(call)

        self._pool.submit(do)

    def _inspect(self, uid: str) -> ContainerView | None:
        view = self._reach.view(uid)
        grip = None if view is None or uid in self._grips else _take_grip(view)
        with self._lock:
            if uid not in self._watched or uid in self._grips:
                if grip is not None:
                    os.close(grip)
            elif grip is not None:
                self._grips[uid] = grip
            if uid in self._watched:
                self._known[uid] = _known(view)
        return view

    def _stop(self, uid: str, signal_name: str) -> None:
        if self._reach.signal(uid, signal_name):
            self._stopping.add(uid)
        else:
            self._inspect(uid)

    def _kill(self, uid: str) -> None:
        view = self._inspect(uid)
        if view is None or view.status is ContainerStatus.ENDED:
            return
        if view.status is ContainerStatus.CREATED:
            # A pending start comes too late.
            log.info("removed_before_start", attempt=uid)
            self._reach.remove(uid)
        else:
            self._reach.signal(uid, "KILL")
        self._inspect(uid)

    def _send(self, uid: str, number: int) -> bool:
        """Send a signal by the grip; False if there is none."""
        with self._lock:
            grip = self._grips.get(uid)
            if grip is None:
                return False
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(grip, number)
            return True


def _known(view: ContainerView | None) -> ContainerFacts:
    if view is None:
        return ContainerFacts.ABSENT
    return ContainerFacts.OVER if view.status is ContainerStatus.ENDED else ContainerFacts.THERE


def _take_grip(view: ContainerView) -> int | None:
    """A descriptor of the container's main process; None where that is not sure, or not ours."""
    if view.pid is None or view.status is not ContainerStatus.RUNNING:
        return None
    try:
        grip = os.pidfd_open(view.pid)
    except (AttributeError, OSError):
        return None
    try:
        # The id is checked after the descriptor was opened, so it belongs to this process and to no
        # later one. In a namespace of its own the same number is another process, with another
        # group.
        groups = Path(f"/proc/{view.pid}/cgroup").read_text(encoding="ascii", errors="replace")
        if view.container_id in groups and not _is_over(grip):
            signal.pidfd_send_signal(grip, 0)
            return grip
    except OSError:
        pass
    os.close(grip)
    return None


def _is_over(grip: int | None) -> bool:
    if grip is None:
        return False
    poller = select.poll()
    poller.register(grip, select.POLLIN)
    return bool(poller.poll(0))


def _number(name: str) -> int:
    plain = name.removeprefix("SIG")
    if plain.isdecimal():
        return int(plain)
    return signal.Signals.__members__.get(f"SIG{plain}", signal.SIGTERM)
