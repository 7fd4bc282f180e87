"""A guard inside the cell, for the memory driver: its pretended containers die with the process."""

from collections.abc import Callable

from workers.attempt.events import Permit
from workers.drivers.memory import MemoryEngine
from workers.guard.decisions import ContainerFacts, Guard
from workers.guard.watchlist import GuardStatus, Watchlist, permit


class MemoryEngineControl:
    """Reach the lives of a memory engine. `clock` gives wall seconds."""

    def __init__(self, engine: MemoryEngine, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._clock = clock

    def inspect(self, uid: str, now: float) -> None:
        """Nothing to do: everything is seen at once."""

    def known(self, uid: str) -> ContainerFacts:
        """See workers.guard.decisions.EngineControl."""
        life = self._engine.lives.get(uid)
        if life is None:
            return ContainerFacts.ABSENT
        return ContainerFacts.OVER if life.ends_at <= self._clock() else ContainerFacts.THERE

    def stop(self, uid: str, signal_name: str) -> None:
        """End it, unless it is deaf."""
        self._engine.stop_outside(uid, self._clock())

    def kill(self, uid: str) -> None:
        """End it."""
        self._engine.kill_outside(uid, self._clock())

    def forget(self, uid: str) -> None:
        """Nothing was remembered."""


class LocalGuardLink:
    """A workers.guard.link.GuardLink to a guard in the same process."""

    def __init__(
        self,
        engine: MemoryEngine,
        *,
        wall: Callable[[], float],
        boot: Callable[[], float],
        boot_id: str,
        watchlist: Watchlist | None = None,
    ) -> None:
        """`watchlist`: what an earlier guard had to watch."""
        self.boot_id = boot_id
        self._boot = boot
        self._watchlist = watchlist or Watchlist()
        self._status = GuardStatus()
        self._guard = Guard(MemoryEngineControl(engine, wall), self._store, boot_id=boot_id)

    def _store(self, status: GuardStatus) -> None:
        self._status = status

    def read(self) -> Watchlist:
        """The list as it is."""
        return self._watchlist

    def status(self) -> GuardStatus:
        """Return the last status of the guard."""
        return self._status

    def write(self, watchlist: Watchlist) -> None:
        """Show the guard another list."""
        self._watchlist = watchlist
        self.tick()

    def stand_by(self) -> bool:
        """The guard lives as long as the cell does."""
        return True

    def permit(self, uid: str) -> Permit:
        """Whether a start may happen now."""
        return permit(self._watchlist, self._status, uid, self._boot())

    def tick(self) -> None:
        """Let the guard do what is due."""
        self._guard.tick(self._watchlist, self._boot())

    @property
    def wakes_at(self) -> float:
        """When the guard has something to do, in seconds since boot."""
        return self._guard.wakes_at(self._boot())

    def dismiss(self) -> None:
        """It ends with the cell."""
