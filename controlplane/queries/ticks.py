"""When each tick last ran, and the lock that keeps two from doing the same work."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from controlplane.queries.sql import rows, scalar


@dataclass(frozen=True, slots=True)
class TickFacts:
    """The last run of a tick. `hold_until`: after a gap of the control plane, until when it does
    nothing.
    """

    mark: int = 0
    started_at: datetime | None = None
    finished_at: datetime | None = None
    covered_at: datetime | None = None
    hold_until: datetime | None = None

    def lag(self, now: datetime, interval: float) -> float:
        """How many seconds later than it should a run begins that begins `now`."""
        if self.started_at is None:
            return 0.0
        planned = self.started_at + timedelta(seconds=interval)
        return max(0.0, (now - planned).total_seconds())


TICK_COLUMNS = "t.mark, t.started_at, t.finished_at, t.covered_at, t.hold_until"
"""The columns of the state of a tick `t` that `read_ticks` reads behind its name."""


def load_ticks(*names: str) -> list[TickFacts]:
    """Return the last run of each tick; one that never ran has all defaults."""
    statement = f"""
        SELECT t.name, {TICK_COLUMNS} FROM controlplane_tickstate t WHERE t.name = ANY(%s)
        """
    return read_ticks(rows(statement, [list(names)], prepare=True), names)


def read_ticks(found: Iterable[tuple[Any, ...]], names: Iterable[str]) -> list[TickFacts]:
    """Return the ticks `names` from rows with their names and columns; NULL is no run."""
    ticks = {name: TickFacts(mark or 0, *rest) for name, mark, *rest in found}
    return [ticks.get(name, TickFacts()) for name in names]


def load_tick(name: str) -> TickFacts:
    """Return the last run of the tick, as `load_ticks` does."""
    (found,) = load_ticks(name)
    return found


def load_probe_time() -> datetime | None:
    """Return the oldest of the times at which the shards of the inbox last returned a probe.

    None if one of them has never returned any.
    """
    statement = """
        SELECT CASE WHEN bool_and(delivered_until IS NOT NULL) THEN min(delivered_until) END
        FROM controlplane_inboxprobe
        """
    delivered_until: datetime | None = scalar(statement)
    return delivered_until


def load_silence(*, lost: bool) -> tuple[int, datetime | None]:
    """Return the number of cells that should send, and the time of the last message of any.

    These are cells that have registered, did not leave for good and are not revoked, with `lost`
    also LOST ones.
    """
    statement = """
        SELECT count(*), max(l.last_message_at) FROM controlplane_cell c
        JOIN controlplane_celllease l ON l.cell_id = c.id
        WHERE c.incarnation <> '' AND l.left_at IS NULL AND c.revoked_at IS NULL
          AND (%s OR c.state <> 'LOST')
        """
    ((cells, last_message_at),) = rows(statement, [lost])
    return cells, last_message_at


def try_lock(key: int) -> bool:
    """Take the advisory lock until the end of the transaction, if it is free."""
    return bool(scalar("SELECT pg_try_advisory_xact_lock(%s)", [key], prepare=True))
