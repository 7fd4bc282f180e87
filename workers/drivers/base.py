"""The driver interface: attempts are started, adopted, stopped by uid, and every end is reported.

A driver is asynchronous. `start` and `adopt` return at once; events reach the `Listener` from any
thread: zero or more BuildingEvents, at most one StartedEvent, exactly one EndedEvent, in that
order, and StageFailedEvents at any time before the end. A driver reports BuildingEvent with phase
`preparing` at once, also while the attempt waits for a build slot; drivers without containers or
processes may omit it. An attempt with a health check is reported as started once the check passes,
and may end before. EndedEvent has `never_created` only if it is certain that no process of the cell
ever created a container. An attempt is in the driver's charge from its `start` or `adopt` to its
`remove`; a second `start` or `adopt` meanwhile has no effect. After `close` no event follows. One
conformance suite (tests/conformance) tests all drivers against these rules.
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
from workers.exec.program import ExecCommand, ExecProgram

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
        """Take charge of an attempt that an earlier process of this cell began.

        What follows depends on the container:

        * running: Started, and later Ended. With a health check, Started follows at once if
          `launch` has it as RUNNING.
        * ended: Started, then Ended with the real exit code.
        * created but never started: the container is started now.
        * certainly never created, and the order is still valid: the attempt starts from the
          beginning.
        * otherwise, or vanished: Ended with failure kind OUTSIDE; it is not created again.

        No event follows while the engine does not answer.
        """

    def stop(self, uid: str, *, grace_seconds: float, force: bool) -> None:
        """Send the stop signal, and SIGKILL after the grace period, or at once with `force`.

        Ended follows, with reason "stopped" unless the program ended by itself before. A container
        that was not started yet is never started. Repeatable: the earliest kill counts. A uid that
        is not in charge is ignored: `remove` it.
        """

    def execute(self, command: ExecCommand) -> ExecProgram:
        """Start a program of a user in a running attempt in charge. Raise ExecRefused.

        Blocks until it runs. It changes neither events nor output of the attempt, whose end ends
        it.
        """

    def find(self) -> Iterable[FoundContainer]:
        """Return the containers with the labels of this installation and cell. Raise EngineAway.

        Blocks for one call to the engine.
        """

    def remove(self, uid: str) -> None:
        """Delete an attempt's container and workspace, in the background (logs stay). Repeatable.

        A running container is killed first; an attempt in charge is reported as Ended before. The
        removal is abandoned after some refusals of the engine; `find` then still lists it.
        """

    def close(self) -> None:
        """Release threads and connections; containers keep running."""
