"""A cell's disk, simulated: it keeps what was synced, may tear the rest, and has older copies."""

from random import Random

from tests.simulation.timeline import Killed

COPIES = 20


class Disk:
    """`workers.journal_file.Store` in memory."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._durable = b""
        self._unsynced = b""
        self._copies: list[bytes] = []
        self.tears_next = False

    # ------------------------------------------------------------------ Store

    def read(self) -> bytes:
        """What is there."""
        return self._durable + self._unsynced

    def append(self, lines: bytes) -> None:
        """Add lines; with `tears_next` the process dies in the middle of it."""
        if self.tears_next:
            self.tears_next = False
            self._unsynced += lines[: self._rng.randrange(len(lines) + 1)]
            raise Killed
        self._unsynced += lines

    def sync(self) -> None:
        """Make it safe."""
        self._durable += self._unsynced
        self._unsynced = b""
        if self._rng.random() < 0.1:
            self._copies = [*self._copies, self._durable][-COPIES:]

    def replace(self, content: bytes) -> None:
        """Put `content` in place of everything."""
        self._durable, self._unsynced = content, b""

    def cut(self, length: int) -> None:
        """Drop what is behind."""
        self._durable, self._unsynced = self.read()[:length], b""

    def lacks_room(self) -> bool:
        """It is large enough."""
        return False

    def size(self) -> int:
        """Bytes."""
        return len(self._durable) + len(self._unsynced)

    # ------------------------------------------------------------------ faults

    def lose_power(self) -> None:
        """The machine crashes: of what was not synced, any part may be there."""
        self._durable += self._unsynced[: self._rng.randrange(len(self._unsynced) + 1)]
        self._unsynced = b""

    def wipe(self) -> None:
        """Delete the journal."""
        self._durable = self._unsynced = b""

    def roll_back(self) -> bool:
        """Restore an older copy; return False if there is none."""
        if not self._copies:
            return False
        self._durable, self._unsynced = self._rng.choice(self._copies), b""
        return True
