"""Messages from a cell: Register, Heartbeat, Reports (each with all facts so far), Goodbye."""

import codecs
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from controlplane.contract import fields
from controlplane.contract.artifacts import path_of
from controlplane.contract.fields import MalformedMessage
from controlplane.contract.messages.phases import PhaseChange, read_phases
from controlplane.contract.messages.sanitizing import clean_mapping
from controlplane.contract.states import STATE_OF, FailureKind, Phase, TaskState

RESULT_BYTES = 10_240  # Diego: the first 10 KB of the result file
MESSAGE_CHARS = 2_000
UNFIT_CHARS = 200
REGISTRY = "registry"  # reason of an end: the image's registry does not respond
IMAGE = "image"  # not found, not allowed, malformed, or absent and never pulled
COMMAND = "command"  # not in the image, or not executable
SPEC = "spec"  # invalid for the engine: user, folder, too little memory, …
NOT_HERE = "not_here"  # this cell cannot run it; another cell may
RUNNER_FINAL = "runner_final"  # its runner reported that no retry can succeed

PERMANENT = frozenset({IMAGE, COMMAND, SPEC})
"""Reasons of a user failure that no retry can fix."""
MAX_REPORTS = 500  # in one message, which the inbox applies in one batch
MAX_OUTPUTS = 1_000  # files that one attempt may keep

_UTF_8 = codecs.getincrementaldecoder("utf-8")


def head_of_result(content: bytes) -> tuple[str, bool]:
    """Return the first 10,240 bytes of a result as text, and whether there was more.

    Invalid UTF-8 is replaced; a character at the cut is dropped.
    """
    is_cut = len(content) > RESULT_BYTES
    return _UTF_8("replace").decode(content[:RESULT_BYTES], final=not is_cut), is_cut


@dataclass(frozen=True, slots=True)
class HeldAttempt:
    """One attempt with an existing or planned container on the cell; about 30 bytes."""

    uid: str
    state: TaskState


@dataclass(frozen=True, slots=True)
class Register:
    """Registration of a cell process with its capacity and the attempts it still holds."""

    capacity: Mapping[str, int]
    labels: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    pool: str = "default"
    drivers: tuple[str, ...] = ()
    task_types: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    inventory: tuple[HeldAttempt, ...] = ()

    def body(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "type": "register",
            "capacity": dict(self.capacity),
            "labels": dict(self.labels),
            "tags": list(self.tags),
            "pool": self.pool,
            "drivers": list(self.drivers),
            "task_types": list(self.task_types),
            "versions": dict(self.versions),
            "inventory": _write_held(self.inventory),
        }


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Liveness of a cell, with the attempts that it holds.

    `unfit`: why it takes no new work; empty: it does. `clock_ahead`: the estimated seconds by
    which its clock is ahead of the control plane's.
    """

    held: tuple[HeldAttempt, ...]
    unfit: str = ""
    clock_ahead: float | None = None

    def body(self) -> dict[str, Any]:
        """Return the JSON form; absent facts are left out."""
        return fields.without_none(
            {
                "type": "heartbeat",
                "held": _write_held(self.held),
                "unfit": self.unfit or None,
                "clock": self.clock_ahead,
            }
        )


@dataclass(frozen=True, slots=True)
class AttemptReport:
    """All facts of one attempt so far; instants in seconds.

    `addresses`: "host:port" by name of a published port. `outputs`: the outputs that were kept,
    each {name, size, sha256, uri}. `plugin_phase`, `plugin_state`: as its runner reported them.
    `gone`: no container exists or will be created. `never_created`: neither this process of the
    cell nor an earlier one created the container. `phases`:
    the changes that the control plane has not acknowledged.
    """

    uid: str
    seq: int
    state: TaskState
    phase: Phase | None = None
    progress: int | None = None
    container_id: str | None = None
    exit_code: int | None = None
    failure_kind: FailureKind | None = None
    reason: str | None = None
    message: str | None = None
    result: str | None = None
    result_truncated: bool = False
    usage: Mapping[str, Any] | None = None
    addresses: Mapping[str, str] | None = None
    outputs: tuple[Mapping[str, Any], ...] | None = None
    plugin_phase: str | None = None
    plugin_state: Mapping[str, Any] | None = None
    started_at: float | None = None
    finished_at: float | None = None
    gone: bool = False
    never_created: bool = False
    phases: tuple[PhaseChange, ...] = ()

    def body(self) -> dict[str, Any]:
        """Return the JSON form; absent facts are left out."""
        return fields.without_none(
            {
                "uid": self.uid,
                "seq": self.seq,
                "state": int(self.state),
                "phase": self.phase,
                "progress": self.progress,
                "container": self.container_id,
                "exit_code": self.exit_code,
                "kind": self.failure_kind,
                "reason": self.reason,
                "message": self.message,
                "result": self.result,
                "cut": self.result_truncated or None,
                "usage": self.usage,
                "addresses": self.addresses,
                "outputs": None if self.outputs is None else list(self.outputs),
                "plugin_phase": self.plugin_phase,
                "plugin_state": self.plugin_state,
                "started_at": self.started_at,
                "finished_at": self.finished_at,
                "gone": self.gone or None,
                "never": self.never_created or None,
                "phases": [change.body() for change in self.phases] if self.phases else None,
            }
        )


@dataclass(frozen=True, slots=True)
class Reports:
    """Reports of one flush, oldest first. `after`: the number of the last report before these.

    The control plane acknowledges the highest number below which it misses nothing; the cell sends
    everything above that again.
    """

    after: int
    reports: tuple[AttemptReport, ...]

    def body(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "type": "reports",
            "after": self.after,
            "reports": [report.body() for report in self.reports],
        }


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The cell process ends and expects a successor within `expected_seconds` (0: none)."""

    expected_seconds: int

    def body(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"type": "goodbye", "expected_seconds": self.expected_seconds}


Message = Register | Heartbeat | Reports | Goodbye


def read_message(body: Mapping[str, Any]) -> Message:
    """Return the message in a payload. Raise MalformedMessage."""
    kind = fields.text(body, "type")
    try:
        reader = _READERS[kind]
    except KeyError:
        raise MalformedMessage(f"unknown message type {kind!r}") from None
    return reader(body)


def read_state(number: Any) -> TaskState:
    """Return a task state by its number. Raise MalformedMessage."""
    state = STATE_OF.get(number) if isinstance(number, int) else None
    if state is None:
        raise MalformedMessage(f"{number!r} is not a task state")
    return state


def _write_held(held: tuple[HeldAttempt, ...]) -> list[list[Any]]:
    return [[item.uid, int(item.state)] for item in held]


def _read_held(item: Any) -> HeldAttempt:
    if not isinstance(item, list) or len(item) != 2 or not isinstance(item[0], str):
        raise MalformedMessage("a held attempt is [uid, state]")
    return HeldAttempt(fields.clean_text(item[0], 64), read_state(item[1]))


def _read_register(body: Mapping[str, Any]) -> Register:
    return Register(
        capacity={
            _read_text(name): _quantity(name, value)
            for name, value in fields.mapping(body, "capacity").items()
        },
        labels=_read_texts(body, "labels"),
        tags=fields.listing(body, "tags", _read_text),
        pool=fields.text(body, "pool", "default", 63),
        drivers=fields.listing(body, "drivers", _read_text),
        task_types=fields.listing(body, "task_types", _read_text),
        versions=_read_texts(body, "versions"),
        inventory=fields.listing(body, "inventory", _read_held),
    )


def _read_heartbeat(body: Mapping[str, Any]) -> Heartbeat:
    return Heartbeat(
        fields.listing(body, "held", _read_held),
        unfit=fields.text(body, "unfit", "", UNFIT_CHARS),
        clock_ahead=fields.number(body, "clock", None),
    )


def _read_reports(body: Mapping[str, Any]) -> Reports:
    return Reports(
        fields.whole(body, "after"), fields.listing(body, "reports", read_report, MAX_REPORTS)
    )


def _read_goodbye(body: Mapping[str, Any]) -> Goodbye:
    return Goodbye(min(max(fields.whole(body, "expected_seconds"), 0), 600))


def read_report(item: Any) -> AttemptReport:
    """Return one report. Raise MalformedMessage."""
    body = fields.as_object(item)
    progress = fields.whole(body, "progress", None)
    result = fields.text(body, "result", None, RESULT_BYTES)
    return AttemptReport(
        uid=fields.text(body, "uid", limit=64),
        seq=fields.whole(body, "seq"),
        state=read_state(body.get("state")),
        phase=_one_of(Phase, fields.text(body, "phase", None)),
        progress=None if progress is None else min(max(progress, 0), 100),
        container_id=fields.text(body, "container", None, 128),
        exit_code=fields.whole(body, "exit_code", None),
        failure_kind=_one_of(FailureKind, fields.text(body, "kind", None)),
        reason=fields.text(body, "reason", None, 32),
        message=fields.text(body, "message", None, MESSAGE_CHARS),
        result=result,
        result_truncated=fields.flag(body, "cut", False),
        usage=clean_mapping(body.get("usage")),
        addresses=_read_texts(body, "addresses") if body.get("addresses") is not None else None,
        outputs=_read_outputs(body) if body.get("outputs") is not None else None,
        plugin_phase=fields.text(body, "plugin_phase", None, 63),
        plugin_state=clean_mapping(body.get("plugin_state")),
        started_at=fields.instant(body, "started_at", None),
        finished_at=fields.instant(body, "finished_at", None),
        gone=fields.flag(body, "gone", False),
        never_created=fields.flag(body, "never", False),
        phases=read_phases(body, "phases"),
    )


def _read_outputs(body: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Read the outputs that were kept; reject paths of the store that belong to other attempts."""
    uid = fields.text(body, "uid", limit=64)
    found = fields.listing(body, "outputs", _read_kept, MAX_OUTPUTS)
    return tuple(
        item
        for item in found
        if not item["uri"].startswith("/") or item["uri"] == path_of(uid, item["name"])
    )


def _read_kept(item: Any) -> Mapping[str, Any]:
    body = fields.as_object(item)
    return {
        "name": fields.text(body, "name", limit=255),
        "size": fields.whole(body, "size"),
        "sha256": fields.text(body, "sha256", limit=64),
        "uri": fields.text(body, "uri", limit=2_000),
    }


def _one_of(kind: Any, value: str | None) -> Any:
    if value is None:
        return None
    try:
        return kind(value)
    except ValueError:
        raise MalformedMessage(f"{value!r} is not a {kind.__name__}") from None


def _quantity(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 53:
        raise MalformedMessage(f"capacity {name!r} is not a whole number from 0 to 2^53")
    return value


def _read_text(item: Any) -> str:
    if not isinstance(item, str):
        raise MalformedMessage("a text was expected")
    return fields.clean_text(item, 255)


def _read_texts(body: Mapping[str, Any], name: str) -> dict[str, str]:
    return {
        _read_text(key): _read_text(value) for key, value in fields.mapping(body, name, {}).items()
    }


_READERS: dict[str, Callable[[Mapping[str, Any]], Message]] = {
    "register": _read_register,
    "heartbeat": _read_heartbeat,
    "reports": _read_reports,
    "goodbye": _read_goodbye,
}
