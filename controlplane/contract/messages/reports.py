"""Messages from a cell: Register, Heartbeat, Reports, Goodbye."""

import codecs
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Self

from controlplane.contract.artifacts import MAX_FILE_BYTES, is_name, path_of
from controlplane.contract.codec import (
    Clamp,
    Document,
    Instant,
    Key,
    MalformedMessage,
    MaxItems,
    Reader,
    Text,
    read_typed,
)
from controlplane.contract.messages.phases import PhaseChange, read_phases
from controlplane.contract.messages.sanitizing import clean_mapping, clean_usage
from controlplane.contract.records import record
from controlplane.contract.states import FailureKind, Phase, TaskState

RESULT_BYTES = 10_240  # the first 10 KB of the result file, as in Diego
MESSAGE_CHARS = 2_000
UNFIT_CHARS = 200
# Reasons of ends.
INPUT_CORRUPT = "input_corrupt"  # a stored file differs from what was stored
REGISTRY = "registry"  # the image's registry does not respond
IMAGE = "image"  # not found, not allowed, malformed, or absent with pull policy never
COMMAND = "command"  # not in the image, or not executable
SPEC = "spec"  # invalid for the engine: user, folder, too little memory, …
NOT_HERE = "not_here"  # this cell cannot run it; another cell may
RUNNER_FINAL = "runner_final"  # its runner reported that no retry can succeed

PERMANENT = frozenset({IMAGE, COMMAND, SPEC})
"""Reasons of a user failure that no retry can fix."""
MAX_REPORTS = 500  # in one message, which the inbox applies in one batch
MAX_OUTPUTS = 1_000  # stored files of one attempt
MAX_HELD = 10_000  # attempts of one cell: their number decides what a message costs the inbox
MAX_NAMES = 1_000  # names of a kind that a cell registers
# Resources of a cell. Placement computes with all resources of a pool, in numbers that grow with
# them.
MAX_RESOURCES = 64
MAX_URI_CHARS = 2_000

_SHA256 = re.compile("[0-9a-f]{64}")
_UTF_8 = codecs.getincrementaldecoder("utf-8")


def head_of_result(content: bytes) -> tuple[str, bool]:
    """Return the first 10,240 bytes of a result as text, and whether it was truncated.

    Invalid UTF-8 is replaced; an incomplete character at the end is dropped.
    """
    is_truncated = len(content) > RESULT_BYTES
    return _UTF_8("replace").decode(content[:RESULT_BYTES], final=not is_truncated), is_truncated


Uid = Annotated[str, Text(64)]
Name = Annotated[str, Text(255)]
ResourceName = Annotated[str, Text(63)]
Seconds = Annotated[int, Clamp(0, 600)]


def _read_quantity(item: Any) -> int:
    if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item < 1 << 53:
        raise MalformedMessage("is not a whole number from 0 to 2^53")
    return item


Quantity = Annotated[int, Reader(_read_quantity)]
Names = Annotated[Mapping[Name, Name], MaxItems(MAX_NAMES)]
CleanMapping = Annotated[Mapping[str, Any], Reader(clean_mapping)]
"""An object of a runner or an engine; it is dropped if it cannot be stored."""


@record
class HeldAttempt(Document):
    """One attempt with an existing or planned container on the cell."""

    AS_LIST = True

    uid: Uid
    state: TaskState


HeldAttempts = Annotated[tuple[HeldAttempt, ...], MaxItems(MAX_HELD)]


@dataclass(frozen=True, slots=True)
class Register(Document):
    """Registration of a cell process with its capacity and its attempts (`inventory`).

    An empty `pool` is that of the cell's enrolment.
    """

    TYPE = "register"

    capacity: Annotated[Mapping[ResourceName, Quantity], MaxItems(MAX_RESOURCES)]
    labels: Names = field(default_factory=dict)
    tags: Annotated[tuple[Name, ...], MaxItems(MAX_NAMES)] = ()
    pool: Annotated[str, Text(63)] = ""
    drivers: Annotated[tuple[Name, ...], MaxItems(MAX_NAMES)] = ()
    task_types: Annotated[tuple[Name, ...], MaxItems(MAX_NAMES)] = ()
    versions: Names = field(default_factory=dict)
    inventory: HeldAttempts = ()


@dataclass(frozen=True, slots=True)
class Heartbeat(Document):
    """Liveness of a cell, with its attempts (`held`).

    `unfit`: why the cell takes no new work; empty if it does. `clock_ahead`: estimated seconds by
    which its clock is ahead of the control plane's.
    """

    TYPE = "heartbeat"

    held: HeldAttempts
    unfit: Annotated[str, Text(UNFIT_CHARS)] = ""
    clock_ahead: Annotated[float | None, Key("clock")] = None


@dataclass(frozen=True, slots=True)
class KeptOutput(Document):
    """A stored output."""

    name: Name
    size: int
    sha256: Annotated[str, Text(64)]
    uri: Annotated[str, Text(MAX_URI_CHARS)]


def _read_outputs(items: Any) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(items, list) or len(items) > MAX_OUTPUTS:
        raise MalformedMessage(f"is not a list of at most {MAX_OUTPUTS} items")
    return tuple(KeptOutput.read(item).body() for item in items)


@record
class AttemptReport(Document):
    """All facts of one attempt so far; instants in seconds since 1970.

    `addresses`: "host:port" by name of a published port. `outputs`: stored outputs, each a
    KeptOutput. `plugin_phase`, `plugin_state`: as reported by its runner. `gone`: its container
    does not exist and will not be created. `never_created`: no process of the cell ever created the
    container. `phases`: changes that the control plane has not acknowledged.
    """

    uid: Uid
    seq: int
    state: TaskState
    phase: Phase | None = None
    progress: Annotated[int, Clamp(0, 100)] | None = None
    container_id: Annotated[str | None, Key("container"), Text(128)] = None
    exit_code: int | None = None
    failure_kind: Annotated[FailureKind | None, Key("kind")] = None
    reason: Annotated[str, Text(32)] | None = None
    message: Annotated[str, Text(MESSAGE_CHARS)] | None = None
    result: Annotated[str, Text(RESULT_BYTES)] | None = None
    result_truncated: Annotated[bool, Key("cut")] = False
    usage: Annotated[Mapping[str, Any], Reader(clean_usage)] | None = None
    addresses: Names | None = None
    outputs: Annotated[tuple[Mapping[str, Any], ...] | None, Reader(_read_outputs)] = None
    plugin_phase: Annotated[str, Text(63)] | None = None
    plugin_state: CleanMapping | None = None
    started_at: Instant | None = None
    finished_at: Instant | None = None
    gone: bool = False
    never_created: Annotated[bool, Key("never")] = False
    phases: Annotated[tuple[PhaseChange, ...], Reader(read_phases)] = ()

    def checked(self) -> Self:
        """Omit outputs that web could not send, or that are in the store of other attempts."""
        if self.outputs is None:
            return self
        return replace(self, outputs=tuple(filter(self._is_allowed, self.outputs)))

    def _is_allowed(self, output: Mapping[str, Any]) -> bool:
        uri, name = output["uri"], output["name"]
        if not is_name(name) or not 0 <= output["size"] <= MAX_FILE_BYTES:
            return False
        if not _SHA256.fullmatch(output["sha256"]):
            return False
        return not uri.startswith("/") or uri == path_of(self.uid, name)


@dataclass(frozen=True, slots=True)
class Reports(Document):
    """Reports of one flush, oldest first. `after`: the number of the last report before these.

    The control plane acknowledges the highest number up to which it has received every report; the
    cell resends later ones.
    """

    TYPE = "reports"

    after: int
    reports: Annotated[tuple[AttemptReport, ...], MaxItems(MAX_REPORTS)]


@dataclass(frozen=True, slots=True)
class Goodbye(Document):
    """The cell process ends; a successor is expected within `expected_seconds` (0: none)."""

    TYPE = "goodbye"

    expected_seconds: Seconds


Message = Register | Heartbeat | Reports | Goodbye

_KINDS: dict[str, type[Message]] = {
    kind.TYPE: kind for kind in (Register, Heartbeat, Reports, Goodbye)
}


def read_message(body: Any) -> Message:
    """Return the message in a payload. Raise MalformedMessage."""
    return read_typed(body, _KINDS)
