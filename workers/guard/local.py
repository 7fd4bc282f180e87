"""A guard inside the cell, for the memory driver, whose containers end with the process."""

from collections.abc import Callable

from workers.attempt.events import Permit
from workers.drivers.memory import MemoryEngine
from workers.guard.decisions import ContainerFacts, Guard
from workers.guard.watchlist import GuardStatus, Watchlist, permit


class MemoryEngineControl:
    """Controls the containers of a memory engine. `clock` returns wall seconds."""

    def __init__(self, engine: MemoryEngine, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._clock = clock

    def inspect(self, uid: str, now: float) -> None:
        """Do nothing: `known` reads the engine."""

    def known(self, uid: str) -> ContainerFacts:
        """See workers.guard.decisions.EngineControl."""
        life = self._engine.lives.get(uid)
        if life is None:
            return ContainerFacts.ABSENT
        return ContainerFacts.OVER if life.ends_at <= self._clock() else ContainerFacts.THERE

    def stop(self, uid: str, signal_name: str) -> None:
        """End the container, unless its command is deaf."""
        self._engine.stop_outside(uid, self._clock())

    def kill(self, uid: str) -> None:
        """End the container."""
        self._engine.kill_outside(uid, self._clock())

    def forget(self, uid: str) -> None:
        """Do nothing: nothing is stored."""


class LocalGuardLink:
    """A GuardLink (workers.guard.link) to a guard in the same process."""

    def __init__(
        self,
        engine: MemoryEngine,
        *,
        wall: Callable[[], float],
        boot: Callable[[], float],
        boot_id: str,
        watchlist: Watchlist | None = None,
    ) -> None:
        """Create link and guard; `watchlist` is that of an earlier process of the cell."""
        self.boot_id = boot_id
        self._boot = boot
        self._watchlist = watchlist or Watchlist()
        self._status = GuardStatus()
        self._guard = Guard(MemoryEngineControl(engine, wall), self._store, boot_id=boot_id)

    def _store(self, status: GuardStatus) -> None:
        self._status = status

    def read(self) -> Watchlist:
        """Return the current watchlist."""
        return self._watchlist

    def status(self) -> GuardStatus:
        """Return the last status of the guard."""
        return self._status

    def write(self, watchlist: Watchlist) -> None:
        """Replace the watchlist, and drive the guard."""
        self._watchlist = watchlist
        self.tick()

    def stand_by(self) -> bool:
        """Return True: the guard runs as long as the cell."""
        return True

    def permit(self, uid: str) -> Permit:
        """Return whether an attempt may be started now."""
        return permit(self._watchlist, self._status, uid, self._boot())

    def tick(self) -> None:
        """Drive the guard."""
        self._guard.tick(self._watchlist, self._boot())

    @property
    def wakes_at(self) -> float:
        """When `tick` must be called next, in seconds since boot."""
        return self._guard.wakes_at(self._boot())

    def dismiss(self) -> None:
        """Do nothing: the guard ends with the cell."""
