"""Calls hooks that are due, with no lock held; one that fails or is slow ends its own job."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from time import monotonic

import structlog

from controlplane import clock
from controlplane.commands.hooks.registry import call_at, describe_failure
from controlplane.commands.state.apply import apply
from controlplane.commands.state.transactions import for_each_batch
from controlplane.contract.codec import clean_text
from controlplane.contract.states import TaskState
from controlplane.domain.state.effects import Effects, EndJob, RaiseAlert
from controlplane.domain.state.states import Reason
from controlplane.queries.jobs.hook_calls import DueCall, load_due_calls
from controlplane.queries.locks import lock_jobs
from controlplane.queries.sql import execute, rows

ALERT = "plugin_failed"
PAGE = 100
"""Calls that are claimed at once."""

_CLAIM_SECONDS = 60.0
"""A process that has not finished by then is gone: what it claimed is called again."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _HookResults:
    """What hooks answered. `endings`: of jobs, the first word counts."""

    done: list[int] = field(default_factory=list)
    endings: dict[int, EndJob] = field(default_factory=dict)
    alerts: list[RaiseAlert] = field(default_factory=list)


def call_due(*, now: datetime, seconds: float) -> tuple[int, bool]:
    """Call hooks for `seconds` at most; how many, and whether more is due.

    Each call is made at least once: it is forgotten after its answer is written. Kinds have equal
    shares of the time: the calls of a slow one wait, and not those of the others.
    """
    ends_at = monotonic() + seconds
    claimed = _claim(now)
    answers = _HookResults()
    calls = load_due_calls(claimed)
    share = seconds / max(1, len({due.kind for due in calls}))
    spent: defaultdict[str, float] = defaultdict(float)
    for due in calls:
        began = monotonic()
        if began > ends_at:
            break
        if spent[due.kind] <= share:
            _call(due, answers)
            spent[due.kind] += monotonic() - began
    _end_jobs(list(answers.endings.values()))
    apply(Effects(alerts=answers.alerts), now=clock.now())
    _forget(answers.done)
    left = sorted(set(claimed) - set(answers.done))
    _give_back(left)
    return len(answers.done), bool(left) or len(claimed) == PAGE


def _call(due: DueCall, answers: _HookResults) -> None:
    answers.done.append(due.call_id)
    event = due.event
    if event is None:
        return
    try:
        answer = call_at(due.kind, event)
    except Exception as error:  # whatever another package does, it ends its own job alone
        text = describe_failure(due.kind, f"on_{event.moment}", error)
        log.error("hook_failed", kind=due.kind, job=event.job_id, attempt=event.attempt, why=text)
        answers.alerts.append(RaiseAlert(ALERT, f"hook {due.kind}", text))
        ending = end_by_hook(event.job_id, Reason.HOOK_FAILED, text)
    else:
        if answer is None:
            return
        ending = end_by_hook(event.job_id, Reason.ENDED_BY_HOOK, answer.text)
    answers.endings.setdefault(event.job_id, ending)


def end_by_hook(job_id: int, reason: Reason, text: str) -> EndJob:
    """The end of a job that its hook has ended, or by which the hook failed."""
    return EndJob(job_id, TaskState.FAILED, reason, clean_text(text, 1000))


def _end_jobs(endings: Sequence[EndJob]) -> None:
    by_job = {ending.job_id: ending for ending in endings}

    def end(job_ids: Sequence[int]) -> None:
        jobs = lock_jobs(job_ids)
        found = [by_job[job_id] for job_id in job_ids if job_id in jobs]
        apply(Effects(endings=found), jobs=jobs, now=clock.now(), actor="hooks")

    if by_job:
        for_each_batch(list(by_job), end, what="hooks")


# Kinds take turns: one whose hook is slow does not keep the others waiting.
_CLAIM = """
UPDATE controlplane_hookcall h SET claimed_until = %(until)s
FROM (
    SELECT id, turn FROM (
        SELECT id, row_number() OVER (PARTITION BY kind ORDER BY id) AS turn
        FROM controlplane_hookcall WHERE claimed_until IS NULL OR claimed_until <= %(now)s
    ) AS due ORDER BY turn, id LIMIT %(page)s
) AS chosen
WHERE h.id = chosen.id AND (h.claimed_until IS NULL OR h.claimed_until <= %(now)s)
RETURNING chosen.turn, h.id
"""


def _claim(now: datetime) -> list[int]:
    until = now + timedelta(seconds=_CLAIM_SECONDS)
    found = rows(_CLAIM, {"now": now, "until": until, "page": PAGE})
    return [call_id for _, call_id in sorted(found)]


def _forget(call_ids: Sequence[int]) -> None:
    if call_ids:
        execute("DELETE FROM controlplane_hookcall WHERE id = ANY(%s)", [list(call_ids)])


def _give_back(call_ids: Sequence[int]) -> None:
    if call_ids:
        statement = "UPDATE controlplane_hookcall SET claimed_until = NULL WHERE id = ANY(%s)"
        execute(statement, [list(call_ids)])
