"""Messages to a cell: RegistrationResult, Orders, Sync. Each is idempotent and may arrive late."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from controlplane.contract import fields
from controlplane.contract.fields import MalformedMessage
from controlplane.contract.messages.health import HealthCheck, read_health_check
from controlplane.contract.messages.task_options import (
    Mount,
    Output,
    SecretUse,
    Tmpfs,
    bodies,
    read_mount,
    read_output,
    read_secret_use,
    read_tmpfs,
)

MAX_ORDER_BYTES = 64 * 1024
# Task types that cells support without a runner.
OWN_TASK_TYPES = ("container", "process")


@dataclass(frozen=True, slots=True)
class Input:
    """One file (with `bundle`: a folder of files) that is placed at `path` before the start.

    `url`: a signed link, or (`named`) the URL of the submitter; a bundle is JSON lines `{"name":
    ..., "content": ...}`, or with `url` and `sha256` instead of the content.
    """

    path: str
    url: str
    sha256: str | None = None
    bundle: bool = False
    named: bool = False

    def body(self) -> dict[str, Any]:
        """Return the JSON form."""
        return fields.without_none(
            {
                "path": self.path,
                "url": self.url,
                "sha256": self.sha256,
                "bundle": self.bundle or None,
                "named": self.named or None,
            }
        )


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """The shared fields of tasks of one group; sent once per message. Units: MiB, cpu in millis.

    `exclusive`: its containers must stop when the lease of the cell expires. `ports`: names of the
    published ports. `idle_timeout_seconds`, `lifetime_seconds`: after these the cell ends the
    attempt. `is_gang`: its tasks start together and receive each other's addresses. If
    `needs_briefing`, the cell fetches a launch context (secrets, the last checkpoint, ...) before
    the start.
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

    @property
    def needs_briefing(self) -> bool:
        """Return whether a cell must fetch a launch context before it runs an attempt."""
        return (
            bool(self.secrets or self.outputs or self.registry_secret or self.checkpoint_path)
            or self.is_gang
            or self.task_type not in OWN_TASK_TYPES
        )

    def body(self) -> dict[str, Any]:
        """Return the JSON form."""
        plain = {name: getattr(self, name) for name in _SPEC_PLAIN}
        return fields.without_none(
            {
                **plain,
                "command": list(self.command),
                "entrypoint": None if self.entrypoint is None else list(self.entrypoint),
                "env": dict(self.env),
                "resources": dict(self.resources),
                "inputs": [item.body() for item in self.inputs],
                "exclusive": self.exclusive or None,
                "ports": list(self.ports) or None,
                "health_check": None if self.health_check is None else self.health_check.body(),
                "secrets": bodies(self.secrets),
                "outputs": bodies(self.outputs),
                "mounts": bodies(self.mounts),
                "tmpfs": bodies(self.tmpfs),
                "privileged": self.privileged or None,
                "capabilities": list(self.capabilities) or None,
                "is_gang": self.is_gang or None,
            }
        )


@dataclass(frozen=True, slots=True)
class RunAttempt:
    """Order to run an attempt unless the cell has it. `start_before`: server time, seconds."""

    uid: str
    spec_id: int
    task_id: int
    task_index: int
    number: int
    start_before: float

    def body(self) -> list[Any]:
        """Return the JSON form: a short list, since a message carries many."""
        return [
            self.uid,
            self.spec_id,
            self.task_id,
            self.task_index,
            self.number,
            self.start_before,
        ]


@dataclass(frozen=True, slots=True)
class StopAttempt:
    """Order to stop an attempt; an unknown attempt is recorded as ended."""

    uid: str
    reason: str
    grace_seconds: float = 10.0
    force: bool = False

    def body(self) -> list[Any]:
        """Return the JSON form."""
        return [self.uid, self.reason, self.grace_seconds, self.force]


@dataclass(frozen=True, slots=True)
class Orders:
    """The orders of one tick for one cell; each group spec is included once."""

    specs: tuple[GroupSpec, ...] = ()
    runs: tuple[RunAttempt, ...] = ()
    stops: tuple[StopAttempt, ...] = ()

    def body(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "type": "orders",
            "specs": [spec.body() for spec in self.specs],
            "runs": [run.body() for run in self.runs],
            "stops": [stop.body() for stop in self.stops],
        }


@dataclass(frozen=True, slots=True)
class RegistrationResult:
    """Response to Register: `verdict` is accepted, draw_anew or refused; `why` is a text."""

    verdict: str
    why: str
    server_time: float
    lease_seconds: float
    heartbeat_seconds: float
    register_seq: int

    def body(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "type": "registered",
            "verdict": self.verdict,
            "why": self.why,
            "server_time": self.server_time,
            "lease_seconds": self.lease_seconds,
            "heartbeat_seconds": self.heartbeat_seconds,
            "register_seq": self.register_seq,
        }


@dataclass(frozen=True, slots=True)
class Sync:
    """Response to a heartbeat: the expected attempts of the cell, and the acknowledged reports.

    Listed attempts that are not in `orders.stops` are kept. `draw_anew`: stop everything, then
    begin a new incarnation.
    """

    heartbeat_seq: int
    acked: int
    server_time: float
    lease_seconds: float
    heartbeat_seconds: float
    orders: Orders = field(default_factory=Orders)
    draw_anew: bool = False

    def body(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "type": "sync",
            "heartbeat_seq": self.heartbeat_seq,
            "acked": self.acked,
            "server_time": self.server_time,
            "lease_seconds": self.lease_seconds,
            "heartbeat_seconds": self.heartbeat_seconds,
            "orders": self.orders.body(),
            "draw_anew": self.draw_anew,
        }


Order = Orders | RegistrationResult | Sync


def read_order(body: Mapping[str, Any]) -> Order:
    """Return the order in a payload. Raise MalformedMessage."""
    kind = fields.text(body, "type")
    try:
        reader = _READERS[kind]
    except KeyError:
        raise MalformedMessage(f"unknown order type {kind!r}") from None
    return reader(body)


_SPEC_PLAIN = (
    "id",
    "job_id",
    "job_name",
    "group",
    "replicas",
    "task_type",
    "image",
    "workdir",
    "user",
    "result_file",
    "timeout_seconds",
    "stop_grace_seconds",
    "stop_signal",
    "pull_policy",
    "network",
    "max_pids",
    "shm_mib",
    "read_only",
    "idle_timeout_seconds",
    "lifetime_seconds",
    "registry_secret",
    "checkpoint_path",
)


def read_spec(item: Any) -> GroupSpec:
    """Return one group spec. Raise MalformedMessage."""
    body = fields.as_object(item)
    entrypoint = None
    if body.get("entrypoint") is not None:
        entrypoint = fields.listing(body, "entrypoint", fields.as_text)
    return GroupSpec(
        id=fields.whole(body, "id"),
        job_id=fields.whole(body, "job_id"),
        job_name=fields.text(body, "job_name"),
        group=fields.text(body, "group"),
        replicas=fields.whole(body, "replicas"),
        task_type=fields.text(body, "task_type", "container"),
        image=fields.text(body, "image", None),
        command=fields.listing(body, "command", fields.as_text),
        entrypoint=entrypoint,
        workdir=fields.text(body, "workdir", None),
        user=fields.text(body, "user", None),
        env={key: fields.as_text(value) for key, value in fields.mapping(body, "env", {}).items()},
        resources={
            key: _read_whole(value) for key, value in fields.mapping(body, "resources", {}).items()
        },
        inputs=fields.listing(body, "inputs", _read_input),
        result_file=fields.text(body, "result_file", None),
        timeout_seconds=fields.number(body, "timeout_seconds", None),
        stop_grace_seconds=fields.number(body, "stop_grace_seconds", 10.0),
        stop_signal=fields.text(body, "stop_signal", "TERM"),
        pull_policy=fields.text(body, "pull_policy", "if_not_present"),
        network=fields.text(body, "network", "default"),
        max_pids=fields.whole(body, "max_pids", 1024),
        shm_mib=fields.whole(body, "shm_mib", 64),
        read_only=fields.flag(body, "read_only", False),
        exclusive=fields.flag(body, "exclusive", False),
        ports=fields.listing(body, "ports", fields.as_text),
        health_check=read_health_check(fields.mapping(body, "health_check", None)),
        idle_timeout_seconds=fields.number(body, "idle_timeout_seconds", None),
        lifetime_seconds=fields.number(body, "lifetime_seconds", None),
        secrets=fields.listing(body, "secrets", read_secret_use),
        registry_secret=fields.text(body, "registry_secret", None),
        outputs=fields.listing(body, "outputs", read_output),
        checkpoint_path=fields.text(body, "checkpoint_path", None),
        mounts=fields.listing(body, "mounts", read_mount),
        tmpfs=fields.listing(body, "tmpfs", read_tmpfs),
        privileged=fields.flag(body, "privileged", False),
        capabilities=fields.listing(body, "capabilities", fields.as_text),
        is_gang=fields.flag(body, "is_gang", False),
    )


def _read_whole(item: Any) -> int:
    if isinstance(item, bool) or not isinstance(item, int):
        raise MalformedMessage("a whole number was expected")
    return item


def _read_input(item: Any) -> Input:
    body = fields.as_object(item)
    return Input(
        path=fields.text(body, "path"),
        url=fields.text(body, "url"),
        sha256=fields.text(body, "sha256", None),
        bundle=fields.flag(body, "bundle", False),
        named=fields.flag(body, "named", False),
    )


def read_run(item: Any) -> RunAttempt:
    """Return one run order. Raise MalformedMessage."""
    match item:
        case [
            str(uid),
            int(spec_id),
            int(task_id),
            int(index),
            int(number),
            float() | int() as before,
        ]:
            return RunAttempt(uid, spec_id, task_id, index, number, fields.as_number(before))
    raise MalformedMessage("a run order is [uid, spec, task, index, number, start_before]")


def read_stop(item: Any) -> StopAttempt:
    """Return one stop order. Raise MalformedMessage."""
    match item:
        case [str(uid), str(reason), float() | int() as grace, bool(force)]:
            return StopAttempt(uid, reason, fields.as_number(grace), force)
    raise MalformedMessage("a stop order is [uid, reason, grace_seconds, force]")


def _read_orders(body: Mapping[str, Any]) -> Orders:
    return Orders(
        specs=fields.listing(body, "specs", read_spec),
        runs=fields.listing(body, "runs", read_run),
        stops=fields.listing(body, "stops", read_stop),
    )


def _read_registered(body: Mapping[str, Any]) -> RegistrationResult:
    return RegistrationResult(
        verdict=fields.text(body, "verdict"),
        why=fields.text(body, "why", ""),
        server_time=fields.instant(body, "server_time"),
        lease_seconds=fields.number(body, "lease_seconds"),
        heartbeat_seconds=fields.number(body, "heartbeat_seconds"),
        register_seq=fields.whole(body, "register_seq"),
    )


def _read_sync(body: Mapping[str, Any]) -> Sync:
    return Sync(
        heartbeat_seq=fields.whole(body, "heartbeat_seq"),
        acked=fields.whole(body, "acked"),
        server_time=fields.instant(body, "server_time"),
        lease_seconds=fields.number(body, "lease_seconds"),
        heartbeat_seconds=fields.number(body, "heartbeat_seconds"),
        orders=_read_orders(fields.mapping(body, "orders", {})),
        draw_anew=fields.flag(body, "draw_anew", False),
    )


_READERS: dict[str, Callable[[Mapping[str, Any]], Order]] = {
    "orders": _read_orders,
    "registered": _read_registered,
    "sync": _read_sync,
}
