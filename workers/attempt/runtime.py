"""The operations of a container engine that the steps need: blocking, one container each, by uid.

Every call may raise EngineAway (no answer: the result is unknown) or EngineError (the engine
refused). A call about a missing container raises NoSuchContainer unless its docstring differs.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from controlplane.contract.messages.launch_context import Registry
from workers.attempt.capture import Capture
from workers.attempt.events import FoundContainer, Launch


class EngineAway(Exception):
    """The engine did not answer or closed the connection: the result of the call is unknown."""


class EngineError(Exception):
    """The engine refused, in its own words; `status` is that of its HTTP answer, if any."""

    def __init__(self, words: str, status: int | None = None) -> None:
        super().__init__(words)
        self.status = status


class NoSuchContainer(EngineError):
    """There is no container for this uid."""


class ContainerStatus(StrEnum):
    """How far a container came. One that could not be started stays CREATED."""

    CREATED = "created"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class ContainerView:
    """A container as the engine shows it. Instants in seconds since 1970.

    `pid`: of its main process while it runs, if the engine shows it. `use`: the total use of an
    ended container, if known.
    """

    life: ContainerStatus
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
    """What a container has used so far: time of all its processes, and bytes that it sent.

    Bytes are 0 if the engine does not count them. `memory_peak_bytes`: the maximum over all its
    processes; None: unknown.
    """

    cpu_seconds: float
    sent_bytes: int = 0
    memory_peak_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A file or folder that must exist in the container before its start; a file has `source`'s
    bytes.

    An existing folder keeps its owner; `writable` makes it writable for every user. `bound`: a bind
    mount of `source` instead of a copy, read-only unless `writable`.
    """

    path: str
    source: Path | None = None
    writable: bool = False
    bound: bool = False


@dataclass(frozen=True, slots=True)
class CreateResult:
    """A container that now exists; not `is_new`: it did before."""

    container_id: str
    is_new: bool


class Engine(Protocol):
    """The difference between docker and process.

    `needs_image`: a container is made from an image. `keeps_logs`: output must be copied from the
    engine; else it stands in the attempt's log folder already.
    """

    name: str
    needs_image: bool
    keeps_logs: bool

    def find_image(self, image: str) -> str | None:
        """Return the digest of `image` on the engine: a registry's, or the engine's own; None:
        absent.

        Empty: unknown, and no pull is needed.
        """

    def pull(
        self, image: str, on_progress: Callable[[int], None], registry: Registry | None = None
    ) -> int:
        """Pull `image` with the credentials `registry`, reporting percent; return the bytes
        downloaded.
        """

    def create(self, launch: Launch, placed: Sequence[PlacedFile]) -> CreateResult:
        """Make the container, or find the one made before."""

    def put(self, launch: Launch, placed: Sequence[PlacedFile]) -> None:
        """Make `placed` stand in the created container. Repeatable."""

    def start(self, uid: str) -> None:
        """Start the created container's process. The caller has checked that it never ran."""

    def view(self, uid: str) -> ContainerView | None:
        """The container now; None: there is none."""

    def wait(self, uid: str, seconds: float) -> bool:
        """Block until the started container ended (True) or `seconds` passed (False)."""

    def signal(self, uid: str, name: str) -> bool:
        """Send the signal `name` (TERM, KILL, …) to the main process; False: it has ended."""

    def was_stopped(self, launch: Launch, view: ContainerView) -> bool:
        """Return whether the engine knows of a signal from outside that ended the container."""

    def ports(self, launch: Launch) -> Mapping[str, int]:
        """At which port of this host each of the started container's ports is reached, by name."""

    def host(self, launch: Launch, address: str) -> str:
        """The host at which those ports are reached, in a cell that others reach at `address`."""

    def use(self, uid: str) -> ResourceUsage:
        """What the started container has used so far."""

    def disk_bytes(self, uid: str) -> int:
        """What the started container has written, or was given, on disk and has not removed."""

    def check(self, launch: Launch, command: Sequence[str], seconds: float) -> str:
        """Run `command` in the started container: empty if it succeeded in time, else why not."""

    def read_head(self, launch: Launch, path: str, limit: int) -> bytes | None:
        """The first `limit` bytes of a regular file of the container; None: there is none."""

    def save(self, launch: Launch, path: str, target: Path, take: Callable[[int], None]) -> bool:
        """Write the file or folder at `path` of the ended container to `target`, a tar of names
        relative to it; False: there is none, or no container. `take` counts the bytes first.
        """

    def restore(self, launch: Launch, path: str, source: Path) -> None:
        """Make what `save` wrote stand in the folder `path` of the created container."""

    def copy_logs(self, uid: str, capture: Capture, *, follow: bool) -> None:
        """Add to `capture` what the container wrote since; with `follow` until it ends."""

    def remove(self, uid: str) -> None:
        """Delete the container, running or not; nothing if there is none."""

    def find(self) -> Iterable[FoundContainer]:
        """The containers of this installation and cell."""

    def close(self) -> None:
        """Let go of connections."""


def attempt_labels(launch: Launch, *, installation: str, cell: str) -> Mapping[str, str]:
    """The labels by which people and the cell recognise an attempt's container."""
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
    """The container's name: a second container for the same attempt collides with it."""
    return f"cellrun-{uid}"
