"""What a runner must not forget, on the cell's disk before anything is done that rests on it."""

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

# PostgreSQL stores no text with a NUL in it; an escaped backslash before it makes it other text.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


class StateNotStorable(Exception):
    """The runner's answer cannot be kept; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class RunnerRecord:
    """The last answer of a runner. `started_at`: when it first was RUNNING.

    `stopped_for`: why it is being aborted. `is_over`: nothing of it runs any more.
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
    """What is to be kept of an answer. Raises StateNotStorable."""
    if observation.phase not in list(RunnerPhase) or observation.fault not in list(FailureOrigin):
        raise StateNotStorable(
            f"{observation.phase!r}, {observation.fault!r}: no Phase, or no Fault"
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
    """A state that can be kept; None: the one before. Raises StateNotStorable."""
    if state is None:
        return before
    if not isinstance(state, Mapping):
        raise StateNotStorable(f"its state is a {type(state).__name__}, and no JSON object")
    try:
        json.dumps(dict(state), allow_nan=False, ensure_ascii=False).encode()
        text = compact_json(dict(state))
        plain: Mapping[str, Any] = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise StateNotStorable(f"its state is not JSON: {error}") from error
    if _NUL.search(text):
        raise StateNotStorable("its state has a text with a NUL in it")
    if len(text) > MAX_STATE_BYTES:
        raise StateNotStorable(f"its state has {len(text)} bytes; {MAX_STATE_BYTES} are allowed")
    return plain


def read(path: Path) -> RunnerRecord | None:
    """What was kept last; None: nothing yet. Of what is torn only that much is known: it began."""
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        known = {item.name: body[item.name] for item in fields(RunnerRecord) if item.name in body}
        return RunnerRecord(
            **{**known, "phase": RunnerPhase(body["phase"]), "fault": FailureOrigin(body["fault"])}
        )
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        message = f"what was kept of it cannot be read: {error!r}"
        return RunnerRecord(
            RunnerPhase.RETRYABLE_FAILURE, message=message, fault=FailureOrigin.SYSTEM
        )


def write(path: Path, kept: RunnerRecord) -> None:
    """Keep it, as a whole or not at all, and through a power cut. Raises OSError."""
    write_whole(path, asdict(kept))


def write_whole(path: Path, body: Mapping[str, Any]) -> None:
    """Write a JSON file that is there as a whole or not at all, and stays. Raises OSError."""
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
