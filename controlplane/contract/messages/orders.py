"""Messages to a cell: RegistrationResult, Orders, Sync. Each is idempotent and may arrive late."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from controlplane.contract.codec import Document, Instant, read_typed
from controlplane.contract.messages.health import HealthCheck
from controlplane.contract.messages.task_options import Mount, Output, SecretUse, Tmpfs
from controlplane.contract.records import record

MAX_ORDER_BYTES = 64 * 1024
# Task types that cells support without a runner.
OWN_TASK_TYPES = ("container", "process")


@dataclass(frozen=True, slots=True)
class Input(Document):
    """One file, or with `bundle` a folder of files, which the cell stores at `path`.

    `url`: a signed link, or with `named` a URL of the submitter. A bundle is JSON lines `{"name":
    ..., "content": ...}`, or with `url` and `sha256` instead of the content.
    """

    path: str
    url: str
    sha256: str | None = None
    bundle: bool = False
    named: bool = False


@dataclass(frozen=True, slots=True)
class GroupSpec(Document):
    """The shared fields of tasks of one group; sent once per message. Units: MiB, cpu in millis.

    `id`: that of the group, or a number below zero for tasks whose request a retry rule increased.
    `exclusive`: its containers must stop before the lease of the cell expires. `ports`: names of
    the published ports. `idle_timeout_seconds`, `lifetime_seconds`: limits after which the cell
    ends the attempt. `is_gang`: its tasks start together and receive each other's addresses.
    `disk_limit_mib`: maximum disk use of a task that requests no disk; 0: no limit.
    `input_networks`: from which the pool permits inputs at URLs of the submitter, besides public
    addresses.
    `stdin`: path of the input that the program reads as its standard input. `stdout`, `stderr`:
    paths to which its output is written at its end.
    `trace`: the id of the job's trace, and behind a hyphen that of the submitter's span, if any.
    """

    id: int
    job_id: int
    job_name: str
    group: str
    replicas: int
    task_type: str = "container"
    image: str | None = None
    command: tuple[str, ...] = ()
    entrypoint: tuple[str, ...] | None = None
    workdir: str | None = None
    user: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, int] = field(default_factory=dict)
    inputs: tuple[Input, ...] = ()
    result_file: str | None = None
    stdin: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    timeout_seconds: float | None = None
    stop_grace_seconds: float = 10.0
    stop_signal: str = "TERM"
    pull_policy: str = "if_not_present"
    network: str = "default"
    max_pids: int = 1024
    shm_mib: int = 64
    read_only: bool = False
    exclusive: bool = False
    ports: tuple[str, ...] = ()
    health_check: HealthCheck | None = None
    idle_timeout_seconds: float | None = None
    lifetime_seconds: float | None = None
    secrets: tuple[SecretUse, ...] = ()
    registry_secret: str | None = None
    outputs: tuple[Output, ...] = ()
    checkpoint_path: str | None = None
    mounts: tuple[Mount, ...] = ()
    tmpfs: tuple[Tmpfs, ...] = ()
    privileged: bool = False
    capabilities: tuple[str, ...] = ()
    is_gang: bool = False
    disk_limit_mib: int = 0
    input_networks: tuple[str, ...] = ()
    trace: str = ""

    @property
    def needs_launch_context(self) -> bool:
        """Return whether a cell must fetch a launch context before it runs an attempt."""
        return (
            bool(self.secrets or self.outputs or self.registry_secret or self.checkpoint_path)
            or self.is_gang
            or self.task_type not in OWN_TASK_TYPES
        )


@record
class RunAttempt(Document):
    """Order to run an attempt, unless the cell has it. `start_before`: server time in seconds."""

    AS_LIST = True

    uid: str
    spec_id: int
    task_id: int
    task_index: int
    number: int
    start_before: float


@dataclass(frozen=True, slots=True)
class StopAttempt(Document):
    """Order to stop an attempt; the cell reports an unknown attempt as ended."""

    AS_LIST = True

    uid: str
    reason: str
    grace_seconds: float = 10.0
    force: bool = False


@dataclass(frozen=True, slots=True)
class ExecOrder(Document):
    """Order to run a program inside a running attempt, unless the cell has the session.

    `uid`: of the attempt. `expires`: server time in seconds after which the cell starts nothing.
    `rows`, `columns`: of the terminal at the beginning; 0: not known.
    """

    AS_LIST = True

    uid: str
    session: str
    command: tuple[str, ...]
    tty: bool
    stdin: bool
    expires: float
    rows: int = 0
    columns: int = 0


@dataclass(frozen=True, slots=True)
class Orders(Document):
    """The orders of one tick for one cell; each group spec is included once."""

    TYPE = "orders"

    specs: tuple[GroupSpec, ...] = ()
    runs: tuple[RunAttempt, ...] = ()
    stops: tuple[StopAttempt, ...] = ()
    execs: tuple[ExecOrder, ...] = ()


@dataclass(frozen=True, slots=True)
class RegistrationResult(Document):
    """Response to Register. `verdict`: accepted, draw_anew or refused; `why`: an explanation."""

    TYPE = "registered"

    verdict: str
    why: str
    server_time: Instant
    lease_seconds: float
    heartbeat_seconds: float
    register_seq: int


@dataclass(frozen=True, slots=True)
class Sync(Document):
    """Response to a heartbeat: missing orders, stops, and the acknowledged reports (`acked`).

    The cell keeps its attempts that are not in `orders.stops`. `draw_anew`: stop everything, then
    begin a new incarnation.
    """

    TYPE = "sync"

    heartbeat_seq: int
    acked: int
    server_time: Instant
    lease_seconds: float
    heartbeat_seconds: float
    orders: Orders = field(default_factory=Orders)
    draw_anew: bool = False


Order = Orders | RegistrationResult | Sync

_KINDS: dict[str, type[Order]] = {kind.TYPE: kind for kind in (Orders, RegistrationResult, Sync)}


def read_order(body: Any) -> Order:
    """Return the order in a payload. Raise MalformedMessage."""
    return read_typed(body, _KINDS)
