"""Remove files of attempts without a row, which no user can find or delete.

A killed process or a database restored to an earlier time leaves them. A sweep takes a time slice
and continues at its cursor; a round begins a day after the previous one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from controlplane.commands.state.cursors import save_cursor
from controlplane.queries.cache.entries import find_owned
from controlplane.queries.convergence.cursors import load_cursor
from controlplane.queries.sql import rows
from controlplane.storage.current import current_store
from controlplane.storage.interface import OrphanEntry, OrphanPage

WALK = "orphan_files"
# Longer than any upload. Also the time for an operator to notice a wrong database.
AGE = timedelta(days=1)
# After a longer absence the sweep first waits for `AGE`, as with a new database.
_AWAY = 2 * AGE


@dataclass(slots=True)
class OrphanSweepResult:
    """The result of a sweep. `fault`: why some of the files could not be removed."""

    count: int = 0
    fault: OSError | None = None


@dataclass(slots=True)
class StoreWalk:
    """The open walk of one process over the store, and the place where it continues.

    The cursor in the database is the same place, which may hold many folders: the process that has
    read some of them continues after these, and another process reads the whole place again.
    """

    parts: Iterator[OrphanPage] | None = None
    then: str = ""

    def open(self, place: str) -> Iterator[OrphanPage]:
        """Return the parts from `place` on, without those that this process has read there."""
        if self.parts is None or self.then != place:
            self.parts, self.then = current_store().walk_store(place), place
        return self.parts

    def close(self) -> None:
        """End the walk; the next one begins at the front."""
        self.parts, self.then = None, ""


def sweep_orphan_files(
    walk: StoreWalk, *, now: datetime, is_over: Callable[[], bool]
) -> OrphanSweepResult:
    """Discard files and folders without a row that are older than a day, until `is_over()`."""
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
    except OSError as error:  # an unreadable folder: the next round begins at the front
        done.fault = error
        walk.close()
    save_cursor(WALK, after=walk.then, now=now)
    return done


def _sweep(lying: Sequence[OrphanEntry], done: OrphanSweepResult, *, written_before: float) -> None:
    uids = [item.uid for item in lying if item.uid is not None]
    statement = "SELECT uid FROM controlplane_attempt WHERE uid = ANY(%s::uuid[])"
    store = current_store()
    kept = {uid for (uid,) in rows(statement, [uids])} | find_owned(uids) if uids else set()
    for item in lying:
        if item.uid in kept:
            continue
        try:
            if store.is_older(item, written_before):
                store.put_away(item)
                done.count += 1
        except OSError as error:  # continue with the others
            done.fault = error
