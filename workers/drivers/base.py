"""What every driver promises: attempts are started, adopted, stopped by uid, and every end is told.

A driver is asynchronous. `start` and `adopt` return at once; what happens is told through the
`Listener`, from any thread: zero or more BuildingEvents, at most one StartedEvent, exactly one
EndedEvent, in that order, and StageFailedEvents at any time before the end. A driver reports
BuildingEvent with phase `preparing` at once, also while the attempt waits for a build slot; drivers
without containers or processes may omit it. An attempt with a health check is reported as started
once the check passes, and may end before. EndedEvent says
`never_created` only where it is sure that there never was a container, whatever process of the cell
had the attempt in charge. An attempt is in the driver's charge from its `start` or `adopt` to its
`remove`; a second `start` or `adopt` meanwhile changes nothing. After `close` nothing is told any
more. One conformance suite (tests/conformance) holds all drivers to these promises.
"""

from collections.abc import Iterable
from typing import Protocol

from workers.attempt.events import (
    BuildingEvent,
    DriverEvent,
    EndedEvent,
    FoundContainer,
    Launch,
    Listener,
    StageFailedEvent,
    StartedEvent,
)
from workers.attempt.runtime import EngineAway

__all__ = [
    "BuildingEvent",
    "Driver",
    "DriverEvent",
    "EndedEvent",
    "EngineAway",
    "FoundContainer",
    "Launch",
    "Listener",
    "StageFailedEvent",
    "StartedEvent",
]


class Driver(Protocol):
    """Runs attempts on one kind of engine."""

    name: str

    def start(self, launch: Launch) -> None:
        """Begin the attempt. A container of the same uid is adopted, never started twice."""

    def adopt(self, launch: Launch) -> None:
        """Take charge again of an attempt begun by an earlier process of this cell.

        Its container runs on: Started and later Ended follow, with a health check at once if
        `launch` says that it was RUNNING. It has ended: Started, then Ended with its real exit
        code. It was created but never started: it is started now. It was surely never created, and
        its order is not too late: it begins anew. Else, or if it has vanished: Ended with failure
        kind OUTSIDE, and it will not come. While the engine does not answer nothing is told.
        """

    def stop(self, uid: str, *, grace_seconds: float, force: bool) -> None:
        """Ask for the end: the stop signal, after the grace SIGKILL; at once with `force`.

        Ended follows, with reason "stopped" unless the program's own end came first. Before the
        container was started, it never will be. Repeatable: the earliest kill counts. A uid that
        is not in charge is ignored: `remove` it.
        """

    def find(self) -> Iterable[FoundContainer]:
        """The containers that carry this installation's and this cell's labels.

        Blocks for one call to the engine. Raises EngineAway.
        """

    def remove(self, uid: str) -> None:
        """Delete an attempt's container and workspace, in the background (logs stay). Repeatable.

        A container that still runs is killed first; one in charge is told as Ended before. What
        the engine refuses is given up after some tries: then `find` lists it still.
        """

    def close(self) -> None:
        """Let go of threads and connections; containers keep running."""
