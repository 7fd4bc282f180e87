"""Call due hooks with no lock held; a hook that fails or is too slow ends its own job only."""

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
"""Calls that one claim takes."""

_CLAIM_SECONDS = 60.0
"""After this time the process is presumed dead, and another one makes the claimed calls."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _HookResults:
    """Results of hook calls. `endings`: by job id; the first one of a job is kept."""

    done: list[int] = field(default_factory=list)
    endings: dict[int, EndJob] = field(default_factory=dict)
    alerts: list[RaiseAlert] = field(default_factory=list)


def call_due(*, now: datetime, seconds: float) -> tuple[int, bool]:
    """Call due hooks for at most `seconds`; return how many, and whether more are due.

    Each call is made at least once: its row is deleted after its result is written. Kinds have
    equal shares of the time, so that a slow hook delays only calls of its own kind.
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
    except Exception as error:  # a failure of another package ends only the job of its kind
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
    """Return the end of a job that its hook has ended, or whose hook failed."""
    return EndJob(job_id, TaskState.FAILED, reason, clean_text(text, 1000))


def _end_jobs(endings: Sequence[EndJob]) -> None:
    by_job = {ending.job_id: ending for ending in endings}

    def end(job_ids: Sequence[int]) -> None:
        jobs = lock_jobs(job_ids)
        found = [by_job[job_id] for job_id in job_ids if job_id in jobs]
        apply(Effects(endings=found), jobs=jobs, now=clock.now(), actor="hooks")

    if by_job:
        for_each_batch(list(by_job), end, what="hooks")


# Kinds take turns, so that a kind with a slow hook does not delay the others.
_CLAIM = """
WITH chosen AS MATERIALIZED (
    SELECT id, turn FROM (
        SELECT id, row_number() OVER (PARTITION BY kind ORDER BY id) AS turn
        FROM controlplane_hookcall WHERE claimed_until IS NULL OR claimed_until <= %(now)s
    ) AS due ORDER BY turn, id LIMIT %(page)s
)
UPDATE controlplane_hookcall h SET claimed_until = %(until)s FROM chosen
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
