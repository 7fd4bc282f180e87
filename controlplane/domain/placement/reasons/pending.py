"""Pending reasons of one task: its own, and the one that placement found for its shape."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controlplane.contract.states import TaskState
from controlplane.domain.holds import OpenHold
from controlplane.domain.placement.plugins.validators.start import (
    WAITING_FOR_DEPENDENCY,
    WAITING_FOR_START_TIME,
)
from controlplane.domain.placement.reasons.explain import (
    CONCURRENCY_LIMIT,
    Reason,
    explain_unseen,
)
from controlplane.domain.state.states import TERMINAL

BACKING_OFF = "backing_off"
WAITING_FOR_PREVIOUS_ATTEMPT = "waiting_for_previous_attempt"
WAITING_FOR_JOB = "waiting_for_job"
WAITING_FOR_GANG_TO_LEAVE = "waiting_for_gang_to_leave"
WAITING_FOR_CACHE = "waiting_for_cache"
HELD = "held"

# Jobs that hold a concurrency key: so many in the text of a reason, and in its figures.
NAMED_JOBS, LISTED_JOBS = 3, 20


@dataclass(frozen=True, slots=True)
class CacheWait:
    """Why the cache keeps a task from being placed: it is looked up, or an identical task runs.

    `job_id`, `since`: of the identical task that ran last.
    """

    is_lookup: bool
    job_id: int | None = None
    since: datetime | None = None


@dataclass(frozen=True, slots=True)
class PendingTaskFacts:
    """Facts about a PENDING task. `found`: last reason of its shape (in a gang: of its group).

    `waits_for`: {"job", "name", "until"} of each job that its job waits for; `is_vain`: it can no
    longer be met (only of jobs that are not submitted yet). `start_after`: of its job, used while
    `startable_at` is unknown. `held_image`: the image that cells could not pull, if that is why it
    waits until `not_before`. `retry_rule`: number of the retry rule that retries it. `key_jobs`:
    (job, number of its attempts) of the jobs that hold its concurrency key.
    """

    not_before: datetime | None
    attempt_open: bool
    startable_at: datetime | None
    depends_on: Sequence[Mapping[str, str]]
    found: Mapping[str, Any] | None
    waits_for: Sequence[Mapping[str, Any]] = ()
    is_requeuing: bool = False
    start_after: datetime | None = None
    held_image: str | None = None
    retry_rule: int | None = None
    cache: CacheWait | None = None
    holds: Sequence[OpenHold] = ()
    key_jobs: Sequence[tuple[int, int]] = ()


def pending_reasons(task: PendingTaskFacts, *, now: datetime) -> list[Reason]:
    """Return all reasons why the task waits, its own first; at least one."""
    reasons = [explain_hold(hold) for hold in task.holds]
    if task.not_before is not None and task.not_before > now:
        reasons.append(_backing_off(task.not_before, task.held_image, task.retry_rule))
    if task.attempt_open:
        reasons.append(
            {
                "code": WAITING_FOR_PREVIOUS_ATTEMPT,
                "text": "waits until the container of its previous attempt is confirmed gone",
            }
        )
    if task.waits_for:
        reasons.append(_jobs(task.waits_for))
    if task.startable_at is None and (task.depends_on or not task.waits_for):
        reasons.append(_dependency(task.depends_on))
    if task.is_requeuing:
        reasons.append(
            {
                "code": WAITING_FOR_GANG_TO_LEAVE,
                "text": "waits until the other members of its gang, which fell below its minimum,"
                " are requeued",
            }
        )
    if task.cache is not None and task.startable_at is not None:
        reasons.append(_cache(task.cache))
    starts_at = task.startable_at or task.start_after
    if starts_at is not None and starts_at > now:
        reasons.append(_start_time(starts_at))
    if task.found and task.cache is None:
        reasons.append(_with_jobs(task.found, task.key_jobs))
    return reasons or [explain_unseen()]


def whereabouts(
    state: TaskState,
    *,
    cell: str | None,
    failure_reason: str,
    origin: Mapping[str, Any] | None = None,
) -> Reason:
    """Return the cell of a task that is not pending, or its end: {code, text, cell}.

    `origin`: of its result, if that is from the cache.
    """
    code = state.name.lower()
    if state in TERMINAL:
        text = failure_reason or f"ended {state.name}"
        if origin is not None:
            text += f" with the result of job {origin['job']}, task {origin['task']}"
        return {"code": code, "text": text, "cell": cell}
    return {"code": code, "text": f"is {state.name} on cell {cell}", "cell": cell}


def explain_hold(hold: OpenHold) -> Reason:
    """Return why tasks of a held job or project wait."""
    since = hold.since.isoformat(timespec="milliseconds")
    what = f"its project {hold.project} is held" if hold.project else "held"
    return {
        "code": HELD,
        "text": f"{what} by {hold.by}: {hold.reason}, since {since}",
        "by": hold.by,
        "reason": hold.reason,
        "since": since,
        "project": hold.project or None,
    }


def _backing_off(not_before: datetime, image: str | None, rule: int | None) -> Reason:
    until = not_before.isoformat(timespec="milliseconds")
    by_rule = "" if rule is None else f" (retried by rule {rule} of on_exit)"
    text = f"waits until {until} before it is tried again{by_rule}"
    if image is not None:
        text = f"waits until {until}: several cells could not pull its image {image}"
    return {"code": BACKING_OFF, "text": text, "until": until}


def _with_jobs(found: Mapping[str, Any], jobs: Sequence[tuple[int, int]]) -> Reason:
    """Return the reason of a full concurrency key with the jobs that hold the key."""
    if found.get("code") != CONCURRENCY_LIMIT or "limit" not in found or not jobs:
        return dict(found)
    named = [f"job {job_id}" for job_id, _ in jobs[:NAMED_JOBS]]
    if len(jobs) > NAMED_JOBS:
        named.append(f"{len(jobs) - NAMED_JOBS} more jobs")
    figures = [{"job": job_id, "tasks": tasks} for job_id, tasks in jobs[:LISTED_JOBS]]
    return {**found, "text": f"{found['text']}; held by {', '.join(named)}", "jobs": figures}


def _cache(wait: CacheWait) -> Reason:
    if wait.is_lookup:
        text = "its result is being looked up in the cache"
    elif wait.job_id is None or wait.since is None:
        text = "waits for an identical task"
    else:
        since = wait.since.isoformat(timespec="milliseconds")
        text = f"waits for the result of an identical task of job {wait.job_id}, since {since}"
    return {
        "code": WAITING_FOR_CACHE,
        "text": text,
        "job": wait.job_id,
        "since": wait.since and wait.since.isoformat(timespec="milliseconds"),
    }


def _jobs(waits_for: Sequence[Mapping[str, Any]]) -> Reason:
    vain = [item for item in waits_for if item.get("is_vain")]
    if vain:
        failed = " and ".join(f"job {item['name']} ({item['until']})" for item in vain)
        return {
            "code": WAITING_FOR_JOB,
            "text": f"would end at once: its dependency on {failed} cannot be met",
            "jobs": _job_figures(vain),
        }
    wanted = " and ".join(f"job {item['name']} has {item['until']}" for item in waits_for)
    return {
        "code": WAITING_FOR_JOB,
        "text": f"waits until {wanted}",
        "jobs": _job_figures(waits_for),
    }


def _job_figures(waits_for: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{"job": item["job"], "until": item["until"]} for item in waits_for]


def _dependency(depends_on: Sequence[Mapping[str, str]]) -> Reason:
    wanted = " and ".join(f"group {item['group']} has {item['until']}" for item in depends_on)
    return {
        "code": WAITING_FOR_DEPENDENCY,
        "text": f"waits until {wanted or 'its dependencies are met'}",
        "groups": [item["group"] for item in depends_on],
    }


def _start_time(starts_at: datetime) -> Reason:
    start = starts_at.isoformat(timespec="milliseconds")
    return {
        "code": WAITING_FOR_START_TIME,
        "text": f"must not start before {start}",
        "until": start,
    }
