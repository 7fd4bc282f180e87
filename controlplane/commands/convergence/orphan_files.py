"""Files of attempts of which no row is left are put away: nobody could find or delete them.

A process that died, or a database that was restored to an earlier moment, leaves them. A look has a
slice of time, and goes on where the one before it left off; a round begins a day after the last.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from controlplane.commands.convergence.walks import note_place
from controlplane.queries.sql import rows
from controlplane.storage.orphans import OrphanEntry, OrphanPage, is_older, put_away, walk_store

WALK = "strays"
# No upload takes as long; and an operator has as long to notice that the database is not the one.
AGE = timedelta(days=1)
# Who was away for longer begins as a new database does: by waiting.
_AWAY = 2 * AGE


@dataclass(slots=True)
class OrphanSweepResult:
    """What a look did. `fault`: why some of what was found could not be put away."""

    count: int = 0
    fault: OSError | None = None


class _Round:
    """The round that this process goes on with, and from which place on."""

    parts: Iterator[OrphanPage] | None = None
    then = ""


def sweep_strays(*, now: datetime, is_over: Callable[[], bool]) -> OrphanSweepResult:
    """Put away what is older than a day and of no row, until time `is_over`."""
    done = OrphanSweepResult()
    found = rows("SELECT after, looked_at FROM controlplane_walk WHERE name = %s", [WALK])
    if not found or not timedelta() <= now - found[0][1] <= _AWAY:
        _Round.parts = None
        note_place(WALK, reached="", now=now)
        return done
    if _Round.parts is None or _Round.then != found[0][0]:
        _Round.parts, _Round.then = walk_store(found[0][0]), found[0][0]
    try:
        for part in _Round.parts:
            _Round.then = part.then
            _sweep(part.lying, done, written_before=(now - AGE).timestamp())
            if is_over():
                break
        else:
            _Round.parts, _Round.then = None, ""
    except OSError as error:  # a folder that cannot be read: the next round begins in front
        done.fault = error
        _Round.parts, _Round.then = None, ""
    note_place(WALK, reached=_Round.then, now=now)
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
