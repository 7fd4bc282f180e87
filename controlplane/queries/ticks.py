"""When each tick last ran, and the lock that keeps two from doing the same work."""

from dataclasses import dataclass
from datetime import datetime

from controlplane.queries.sql import rows


@dataclass(frozen=True, slots=True)
class TickFacts:
    """The last run of a tick. `hold_until`: after a gap of our own, how long it only listens."""

    mark: int = 0
    finished_at: datetime | None = None
    covered_at: datetime | None = None
    hold_until: datetime | None = None


def load_tick(name: str) -> TickFacts:
    """The tick's last run; one that never ran has all defaults."""
    statement = """
        SELECT mark, finished_at, covered_at, hold_until FROM controlplane_tickstate
        WHERE name = %s
        """
    found = rows(statement, [name])
    return TickFacts(*found[0]) if found else TickFacts()


def try_lock(key: int) -> bool:
    """Take the advisory lock until the end of the transaction, if it is free."""
    return bool(rows("SELECT pg_try_advisory_xact_lock(%s)", [key])[0][0])
