"""The driver interface: attempts are started, adopted, stopped by uid, and every end is reported.

A driver is asynchronous. `start` and `adopt` return at once; events reach the `Listener` from any
thread: zero or more BuildingEvents, at most one StartedEvent, exactly one EndedEvent, in that
order, and StageFailedEvents at any time before the end. A driver reports BuildingEvent with phase
`preparing` at once, also while the attempt waits for a build slot; drivers without containers or
processes may omit it. An attempt with a health check is reported as started once the check passes,
and may end before. EndedEvent has `never_created` only if it is certain that no container ever
existed, in whichever process of the cell. An attempt is in the driver's charge from its `start` or
`adopt` to its `remove`; a second `start` or `adopt` meanwhile has no effect. After `close` no event
follows. One conformance suite (tests/conformance) tests all drivers against these rules.
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
        """Take charge of an attempt begun by an earlier process of this cell.

        Its container runs: Started and later Ended follow; with a health check Started follows at
        once if `launch` has it as RUNNING. The container has ended: Started, then Ended with its
        real exit code. It was created but never started: it is started now. It was certainly never
        created, and its order is still valid: the attempt starts from the beginning. Otherwise, or
        if it has vanished: Ended with failure kind OUTSIDE, and it is not created again. While the
        engine does not answer no event follows.
        """

    def stop(self, uid: str, *, grace_seconds: float, force: bool) -> None:
        """Order the end: the stop signal, and SIGKILL after the grace, or at once with `force`.

        Ended follows, with reason "stopped" unless the program ended by itself before. A container
        that was not started yet never will be. Repeatable: the earliest kill counts. A uid that is
        not in charge is ignored: `remove` it.
        """

    def find(self) -> Iterable[FoundContainer]:
        """Return the containers with the labels of this installation and cell.

        Blocks for one call to the engine. Raises EngineAway.
        """

    def remove(self, uid: str) -> None:
        """Delete an attempt's container and workspace, in the background (logs stay). Repeatable.

        A running container is killed first; an attempt in charge is reported as Ended before. After
        some refusals of the engine the removal is abandoned: then `find` still lists it.
        """

    def close(self) -> None:
        """Release threads and connections; containers keep running."""
