"""The last answers of runners, on the cell's disk before the cell acts on them."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from controlplane.contract.codec import clean_text, compact_json
from controlplane.contract.messages.reports import MESSAGE_CHARS, RESULT_BYTES
from workers.runners.interface import (
    MAX_STATE_BYTES,
    MAX_WORDS,
    FailureOrigin,
    RunnerObservation,
    RunnerPhase,
)

# PostgreSQL stores no text with NUL; after an escaped backslash, u0000 is ordinary text.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


class StateNotStorable(Exception):
    """The runner's answer cannot be stored; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class RunnerRecord:
    """The last answer of a runner. `started_at`: when it was first RUNNING.

    `stopped_for`: the reason of the abort. `is_over`: no work of the attempt runs any more.
    """

    phase: RunnerPhase = RunnerPhase.QUEUED
    state: Mapping[str, Any] = field(default_factory=dict)
    words: str = ""
    message: str = ""
    reason: str = ""
    fault: FailureOrigin = FailureOrigin.USER
    result: str | None = None
    started_at: float | None = None
    stopped_for: str = ""
    is_over: bool = False


def checked(observation: RunnerObservation, before: RunnerRecord, now: float) -> RunnerRecord:
    """Return the record of an answer. Raise StateNotStorable."""
    if observation.phase not in list(RunnerPhase) or observation.fault not in list(FailureOrigin):
        raise StateNotStorable(
            f"{observation.phase!r}, {observation.fault!r}: not a RunnerPhase and a FailureOrigin"
        )
    started_at = before.started_at
    if observation.phase is RunnerPhase.RUNNING and started_at is None:
        started_at = now
    return RunnerRecord(
        phase=RunnerPhase(observation.phase),
        state=checked_state(observation.state, before.state),
        words=clean_text(str(observation.words), MAX_WORDS),
        message=clean_text(str(observation.message), MESSAGE_CHARS),
        reason=clean_text(str(observation.reason), MAX_WORDS),
        fault=FailureOrigin(observation.fault),
        result=None
        if observation.result is None
        else clean_text(str(observation.result), RESULT_BYTES + 1),
        started_at=started_at,
        is_over=observation.phase in (RunnerPhase.SUCCEEDED, RunnerPhase.FAILED),
    )


def checked_state(state: object, before: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `state` normalized as JSON, or `before` for None. Raise StateNotStorable."""
    if state is None:
        return before
    if not isinstance(state, Mapping):
        raise StateNotStorable(f"its state is a {type(state).__name__}, not a JSON object")
    try:
        json.dumps(dict(state), allow_nan=False, ensure_ascii=False).encode()
        text = compact_json(dict(state))
        normalized: Mapping[str, Any] = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise StateNotStorable(f"its state is not JSON: {error}") from error
    if _NUL.search(text):
        raise StateNotStorable("its state contains a NUL character")
    if len(text) > MAX_STATE_BYTES:
        raise StateNotStorable(f"its state has {len(text)} bytes; {MAX_STATE_BYTES} are allowed")
    return normalized


def read(path: Path) -> RunnerRecord | None:
    """Return the stored record; None: there is none. A corrupt one reads as a system failure."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        known = {item.name: body[item.name] for item in fields(RunnerRecord) if item.name in body}
        return RunnerRecord(
            **{**known, "phase": RunnerPhase(body["phase"]), "fault": FailureOrigin(body["fault"])}
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        message = f"its stored state cannot be read: {error!r}"
        return RunnerRecord(
            RunnerPhase.RETRYABLE_FAILURE, message=message, fault=FailureOrigin.SYSTEM
        )


def write(path: Path, kept: RunnerRecord) -> None:
    """Write the record atomically and durably. Raise OSError."""
    write_whole(path, asdict(kept))


def write_whole(path: Path, body: Mapping[str, Any]) -> None:
    """Write a JSON file atomically and durably. Raise OSError."""
    temporary = path.with_suffix(".new")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(body, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
