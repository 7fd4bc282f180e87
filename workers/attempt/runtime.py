"""The engine operations that the steps need: blocking, for one container each, by uid.

Every call may raise EngineAway (no answer: the result is unknown) or EngineError (the engine
refused). A call about a missing container raises NoSuchContainer unless its docstring differs.
"""

import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from controlplane.contract.messages.launch_context import Registry
from workers.attempt.capture import Capture
from workers.attempt.events import FoundContainer, Launch
from workers.exec.program import ExecCommand, ExecProgram


class EngineAway(Exception):
    """The engine did not answer or closed the connection: the result of the call is unknown."""


class EngineError(Exception):
    """The engine refused; `status` is its HTTP status, if any."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class NoSuchContainer(EngineError):
    """There is no container for this uid."""


class ContainerStatus(StrEnum):
    """The state of a container; one that could not be started stays CREATED."""

    CREATED = "created"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class ContainerView:
    """A container as the engine reports it; times in seconds since 1970.

    `pid`: of the running main process, if the engine reports it. `use`: the total usage of an ended
    container, if known.
    """

    status: ContainerStatus
    container_id: str
    exit_code: int | None = None
    out_of_memory: bool = False
    started_at: float | None = None
    ended_at: float | None = None
    error: str = ""
    pid: int | None = None
    stopped: bool = False
    use: "ResourceUsage | None" = None


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """The usage of a container so far: CPU time of all its processes, and bytes that it sent.

    Bytes are 0 if the engine does not count them. `memory_peak_bytes`: the maximum over all its
    processes; None: unknown.
    """

    cpu_seconds: float
    sent_bytes: int = 0
    memory_peak_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A file with the bytes of `source`, or a folder, to place in the container before its start.

    An existing folder keeps its owner; `writable` makes it writable for every user. `bound`: a bind
    mount of `source` instead of a copy, read-only unless `writable`.
    """

    path: str
    source: Path | None = None
    writable: bool = False
    bound: bool = False


@dataclass(frozen=True, slots=True)
class CreateResult:
    """An existing container; `is_new`: this call created it."""

    container_id: str
    is_new: bool


class Engine(Protocol):
    """The operations that differ between docker and process.

    `needs_image`: a container is created from an image. `keeps_logs`: output must be copied from
    the engine; otherwise it is written to the attempt's log folder directly. `feeds_stdin`: the
    standard input must be sent to the engine; otherwise the program gets the file itself.
    """

    name: str
    needs_image: bool
    keeps_logs: bool
    feeds_stdin: bool

    def find_image(self, image: str) -> str | None:
        """Return the digest of `image`: a registry's, or the engine's own; None: absent.

        Empty: unknown, and no pull is needed.
        """

    def pull(
        self, image: str, on_progress: Callable[[int], None], registry: Registry | None = None
    ) -> int:
        """Pull `image`, report percent, and return the bytes downloaded."""

    def create(self, launch: Launch, placed: Sequence[PlacedFile]) -> CreateResult:
        """Create the container, or return the existing one."""

    def put(self, launch: Launch, placed: Sequence[PlacedFile]) -> None:
        """Place `placed` in the created container. Repeatable."""

    def start(self, uid: str) -> None:
        """Start the created container's process; the caller has checked that it never ran."""

    def stdin(self, uid: str) -> AbstractContextManager[socket.socket]:
        """Connect to the standard input of the created container; its end closes the input."""

    def view(self, uid: str) -> ContainerView | None:
        """Return the current state of the container; None: it does not exist."""

    def wait(self, uid: str, seconds: float) -> bool:
        """Block until the started container has ended (True) or `seconds` passed (False)."""

    def signal(self, uid: str, name: str) -> bool:
        """Send the signal `name` (TERM, KILL, …) to the main process; False: it has ended."""

    def was_stopped(self, launch: Launch, view: ContainerView) -> bool:
        """Return whether the engine recorded a signal from outside that ended the container."""

    def ports(self, launch: Launch) -> Mapping[str, int]:
        """Return the port of this host for each port name of the started container."""

    def host(self, launch: Launch, address: str) -> str:
        """Return the host of those ports, for a cell with this address."""

    def use(self, uid: str) -> ResourceUsage:
        """Return the usage of the started container so far."""

    def disk_bytes(self, uid: str) -> int:
        """Return the bytes on disk that the started container wrote or was given."""

    def check(self, launch: Launch, command: Sequence[str], seconds: float) -> str:
        """Run `command` in the started container; return "" if it succeeded in time, else why."""

    def execute(self, launch: Launch, command: ExecCommand) -> ExecProgram:
        """Start a program of a user in the started container. Raise ExecRefused."""

    def end_programs(self, uid: str) -> None:
        """Kill the programs that an earlier process of this cell left in the container."""

    def read_head(self, launch: Launch, path: str, limit: int) -> bytes | None:
        """Return the first `limit` bytes of a regular file of the container; None: no such file."""

    def save(self, launch: Launch, path: str, target: Path, take: Callable[[int], None]) -> bool:
        """Write the path of the ended container to `target`, a tar with relative names.

        Return False if the path or the container does not exist. A link at a path that ends with
        "/" is followed inside the container. `take` counts the bytes first.
        """

    def write(self, launch: Launch, path: str, source: Path) -> None:
        """Write a copy of `source` to the file `path` of the ended container. Repeatable.

        Raise EngineError with status 400 if the path is a folder, or leads out of the container.
        """

    def restore(self, launch: Launch, path: str, source: Path) -> None:
        """Unpack what `save` wrote into the folder `path` of the created container."""

    def copy_logs(self, uid: str, capture: Capture, *, follow: bool) -> None:
        """Append the container's new output to `capture`; with `follow` until it ends."""

    def remove(self, uid: str) -> None:
        """Delete the container, even if it runs; do nothing if it does not exist."""

    def find(self) -> Iterable[FoundContainer]:
        """Return the containers of this installation and cell."""

    def close(self) -> None:
        """Close connections."""


def attempt_labels(launch: Launch, *, installation: str, cell: str) -> Mapping[str, str]:
    """Return the labels that identify an attempt's container."""
    return {
        "cellrun.installation": installation,
        "cellrun.cell": cell,
        "cellrun.job": str(launch.spec.job_id),
        "cellrun.job_name": launch.spec.job_name,
        "cellrun.group": launch.spec.group,
        "cellrun.task": str(launch.run.task_id),
        "cellrun.attempt": launch.uid,
    }


def container_name(uid: str) -> str:
    """Return the container's name; it makes a second container of the same attempt collide."""
    return f"cellrun-{uid}"
