"""Remove files of attempts without a row: no user could find or delete them.

A process that died, or a database restored to an earlier moment, leaves them. A sweep has a slice
of time and continues at its cursor; a round begins a day after the last.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from controlplane.commands.state.cursors import save_cursor
from controlplane.queries.convergence.cursors import load_cursor
from controlplane.queries.sql import rows
from controlplane.storage.orphans import OrphanEntry, OrphanPage, is_older, put_away, walk_store

WALK = "orphan_files"
# No upload takes as long; and an operator has as long to notice that the database is not the one.
AGE = timedelta(days=1)
# After a longer absence the sweep waits first, as with a new database.
_AWAY = 2 * AGE


@dataclass(slots=True)
class OrphanSweepResult:
    """The result of a sweep. `fault`: why some of the files could not be removed."""

    count: int = 0
    fault: OSError | None = None


@dataclass(slots=True)
class StoreWalk:
    """The open walk over the store of one process, and the place where it continues.

    The cursor is the same place, which may hold many folders: the process that read a part of them
    continues within it, and another one reads the place again.
    """

    parts: Iterator[OrphanPage] | None = None
    then: str = ""

    def open(self, place: str) -> Iterator[OrphanPage]:
        """Return the parts from `place` on, behind those that this process has read there."""
        if self.parts is None or self.then != place:
            self.parts, self.then = walk_store(place), place
        return self.parts

    def close(self) -> None:
        """End the walk: the next one begins at the front."""
        self.parts, self.then = None, ""


def sweep_orphan_files(
    walk: StoreWalk, *, now: datetime, is_over: Callable[[], bool]
) -> OrphanSweepResult:
    """Put away what is older than a day and of no row, until time `is_over`."""
    done = OrphanSweepResult()
    cursor = load_cursor(WALK)
    if cursor.page_at is None or not timedelta() <= now - cursor.page_at <= _AWAY:
        walk.close()
        save_cursor(WALK, after="", now=now)
        return done
    try:
        for part in walk.open(cursor.after):
            walk.then = part.then
            _sweep(part.lying, done, written_before=(now - AGE).timestamp())
            if is_over():
                break
        else:
            walk.close()
    except OSError as error:  # a folder that cannot be read: the next round begins in front
        done.fault = error
        walk.close()
    save_cursor(WALK, after=walk.then, now=now)
    return done


def _sweep(lying: Sequence[OrphanEntry], done: OrphanSweepResult, *, written_before: float) -> None:
    uids = [item.uid for item in lying if item.uid is not None]
    statement = "SELECT uid FROM controlplane_attempt WHERE uid = ANY(%s::uuid[])"
    kept = {uid for (uid,) in rows(statement, [uids])} if uids else set()
    for item in lying:
        if item.uid in kept:
            continue
        try:
            if is_older(item.path, written_before):
                put_away(item)
                done.count += 1
        except OSError as error:  # others may go
            done.fault = error
