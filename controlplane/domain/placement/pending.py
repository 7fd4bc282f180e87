"""Why one task waits: what concerns it alone, or what placement found for its whole group."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

BACKING_OFF = "backing_off"
WAITING_FOR_PREVIOUS_ATTEMPT = "waiting_for_previous_attempt"
WAITING_FOR_DEPENDENCY = "waiting_for_dependency"
WAITING_FOR_JOB = "waiting_for_job"
WAITING_FOR_GANG_TO_LEAVE = "waiting_for_gang_to_leave"
WAITING_FOR_START_TIME = "waiting_for_start_time"
WAITING_FOR_PLACEMENT = "waiting_for_placement"


@dataclass(frozen=True, slots=True)
class Waiting:
    """What is known of a PENDING task. `found`: what placement last said of its group.

    `waits_for`: {"job", "name", "until"} of each job that its own still waits for.
    """

    not_before: datetime | None
    attempt_open: bool
    startable_at: datetime | None
    depends_on: Sequence[Mapping[str, str]]
    found: Mapping[str, Any] | None
    waits_for: Sequence[Mapping[str, Any]] = ()
    is_bouncing: bool = False


def pending_reason(task: Waiting, *, now: datetime) -> dict[str, Any]:
    """{code, text, and figures}: the first that holds, from what is nearest to the task."""
    if task.not_before is not None and task.not_before > now:
        until = task.not_before.isoformat(timespec="milliseconds")
        return {
            "code": BACKING_OFF,
            "text": f"waits until {until} before it is tried again",
            "until": until,
        }
    if task.attempt_open:
        return {
            "code": WAITING_FOR_PREVIOUS_ATTEMPT,
            "text": "waits until the container of its previous attempt is confirmed gone",
        }
    if task.waits_for:
        return _jobs(task.waits_for)
    if task.startable_at is None:
        return _dependency(task.depends_on)
    if task.is_bouncing:
        return {
            "code": WAITING_FOR_GANG_TO_LEAVE,
            "text": "waits until the rest of its gang, which fell below its minimum, is back, too",
        }
    if task.startable_at > now:
        start = task.startable_at.isoformat(timespec="milliseconds")
        return {
            "code": WAITING_FOR_START_TIME,
            "text": f"is not to start before {start}",
            "until": start,
        }
    if task.found:
        return dict(task.found)
    return {"code": WAITING_FOR_PLACEMENT, "text": "waits for the next placement pass"}


def _jobs(waits_for: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    wanted = " and ".join(f"job {item['name']} has {item['until']}" for item in waits_for)
    return {
        "code": WAITING_FOR_JOB,
        "text": f"waits until {wanted}",
        "jobs": [{"job": item["job"], "until": item["until"]} for item in waits_for],
    }


def _dependency(depends_on: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    wanted = " and ".join(f"group {item['group']} has {item['until']}" for item in depends_on)
    return {
        "code": WAITING_FOR_DEPENDENCY,
        "text": f"waits until {wanted}",
        "groups": [item["group"] for item in depends_on],
    }
