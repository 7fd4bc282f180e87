"""End a session that has been idle for its limit.

A session is active between two checks if its processes used at least 1 % of one core, it wrote any
output that is kept, or it sent at least 256 bytes (more than the chatter of an idle network, less
than an answer to a request). Checks run at a tenth of the limit, at least every 15 seconds and at
most every second. A value that cannot be read counts as activity. The last values are kept in the
workspace for the next process of the cell.
"""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import structlog

from workers.attempt.attempt import AttemptRun
from workers.attempt.capture import STREAMS
from workers.attempt.runtime import EngineAway, EngineError

log = structlog.get_logger(__name__)
CPU_SHARE = 0.01
SENT_BYTES = 256
MIN_INTERVAL_SECONDS, MAX_INTERVAL_SECONDS = 1.0, 15.0
SAMPLES = 10  # within the limit


@dataclass(frozen=True, slots=True)
class ActivitySample:
    """The usage and output at `at` (wall seconds), and when activity was last seen."""

    at: float
    active_at: float
    cpu_seconds: float
    sent_bytes: int
    output_bytes: int


def watch_idleness(attempt: AttemptRun, stop: Callable[[], None]) -> None:
    """Check until the attempt has ended or has been idle for its limit."""
    limit = attempt.launch.spec.idle_timeout_seconds
    assert limit is not None
    pause = min(max(limit / SAMPLES, MIN_INTERVAL_SECONDS), MAX_INTERVAL_SECONDS)
    path = attempt.workspace / "activity.json"
    last = read_sample(path)
    while not attempt.ended and not attempt.context.closed.is_set():
        last = _sample(attempt, last)
        _write_sample(path, last)
        if last.at - last.active_at >= limit:
            stop()
            return
        attempt.over.wait(min(pause, last.active_at + limit - last.at))


def _sample(attempt: AttemptRun, last: ActivitySample | None) -> ActivitySample:
    now = attempt.context.now()
    try:
        use = attempt.engine.use(attempt.uid)
    except (EngineAway, EngineError):
        kept = last or ActivitySample(now, now, 0.0, 0, 0)
        return ActivitySample(now, now, kept.cpu_seconds, kept.sent_bytes, kept.output_bytes)
    output = _output_bytes(attempt.log_folder)
    sample = ActivitySample(now, now, use.cpu_seconds, use.sent_bytes, output)
    if last is None or is_active(last, sample):
        return sample
    return ActivitySample(now, last.active_at, use.cpu_seconds, use.sent_bytes, output)


def is_active(last: ActivitySample, sample: ActivitySample) -> bool:
    """Return whether there was activity between the two samples."""
    busy = sample.cpu_seconds - last.cpu_seconds >= CPU_SHARE * max(sample.at - last.at, 0.0)
    sent = sample.sent_bytes - last.sent_bytes >= SENT_BYTES
    return busy or sent or sample.output_bytes != last.output_bytes


def _output_bytes(folder: Path) -> int:
    total = 0
    for name in STREAMS:
        try:
            total += (folder / name).stat().st_size
        except OSError:
            continue
    return total


def read_sample(path: Path) -> ActivitySample | None:
    """Return the last sample of an earlier process of the cell; None: none is readable."""
    try:
        return ActivitySample(**json.loads(path.read_text(encoding="ascii")))
    except (OSError, ValueError, TypeError):
        return None


def _write_sample(path: Path, sample: ActivitySample) -> None:
    draft = path.with_suffix(".new")
    try:
        draft.write_text(json.dumps(asdict(sample)), encoding="ascii")
        os.replace(draft, path)
    except OSError as error:
        log.warning("activity_not_kept", attempt=path.parent.name, error=str(error))
