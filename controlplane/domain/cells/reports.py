"""Attempt reports: apply the guards in order, then derive the event of the task."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from controlplane.contract.messages.phases import MAX_PHASES
from controlplane.contract.messages.reports import (
    COMMAND,
    IMAGE,
    INPUT_CORRUPT,
    NOT_HERE,
    PERMANENT,
    RUNNER_FINAL,
    AttemptReport,
)
from controlplane.contract.states import FailureKind, TaskState
from controlplane.domain.hooks.built_in import BatchHook
from controlplane.domain.hooks.interface import AttemptEnd, Hook, meaning_of
from controlplane.domain.state.effects import ChangeAttempt, ChangeTask
from controlplane.domain.state.facts import AttemptFacts, TaskFacts
from controlplane.domain.state.phases import PhaseStep, new_phases, phase_number, phase_steps
from controlplane.domain.state.states import ATTEMPT_STATES, PROGRESS, TERMINAL, Reason, ReleaseKind
from controlplane.domain.state.task_changes import ChangeCause, change_task, keep_task, release_task
from controlplane.domain.state.transitions import Event, is_legal

_ENDS = TERMINAL & ATTEMPT_STATES  # a cell never reports UNSCHEDULABLE


@dataclass(frozen=True, slots=True)
class IgnoredReport:
    """A report that changes nothing; it is counted by the reason `why`, and acknowledged."""

    why: str


@dataclass(frozen=True, slots=True)
class ReportSender:
    """The cell and incarnation that sent a report."""

    cell_id: int
    incarnation: str


_BATCH = BatchHook()


def decide_report(
    facts: TaskFacts | None,
    report: AttemptReport,
    sender: ReportSender,
    *,
    now: datetime,
    hook: Hook = _BATCH,
) -> ChangeTask | IgnoredReport:
    """Return the change that `report` makes; docs/architecture.md, "Reports", lists the guards.

    `hook`: of the job's kind, which classifies ends.
    """
    attempt = facts.attempt if facts else None
    if facts is None or attempt is None or str(attempt.uid) != report.uid:
        return IgnoredReport("unknown_attempt")
    if attempt.cell_id != sender.cell_id or attempt.incarnation != sender.incarnation:
        return IgnoredReport("other_incarnation")
    if report.seq <= attempt.report_seq:
        return IgnoredReport("not_newer")
    reported = _facts_of(report, attempt, now)
    phases = new_phases(report, attempt, now)
    if attempt.state in TERMINAL:
        return _decide_after_end(facts, attempt, report, reported, phases, now)
    if report.state not in _ENDS and PROGRESS.get(report.state, -1) < PROGRESS[attempt.state]:
        return IgnoredReport("regression")
    if report.state is attempt.state:
        return _progress(facts, attempt, reported, phases, now)
    event, cause = _classify(*_event(report, attempt), facts, attempt, report, hook)
    if report.never_created and report.gone:
        cause = replace(cause, never_created=True)
    if not is_legal(facts.state, event):
        return IgnoredReport("illegal")
    return change_task(facts, event, cause, now=now, report=reported, phases=phases)


def _classify(
    event: Event,
    cause: ChangeCause,
    facts: TaskFacts,
    attempt: AttemptFacts,
    report: AttemptReport,
    hook: Hook,
) -> tuple[Event, ChangeCause]:
    """Classify the end of an attempt with the hook of its job's kind."""
    if event not in _CLASSIFIED_BY_HOOK:
        return event, cause
    # The RUNNING report may be lost, or arrive with this one.
    was_running = attempt.state is TaskState.RUNNING or report.started_at is not None
    end = AttemptEnd(event, was_running, report.exit_code, report.uid, facts.task_id, facts.job_id)
    classified = meaning_of(end, hook, facts.state)
    if classified is not event and event is Event.EXITED_ZERO:
        cause = replace(cause, reason=Reason.ENDED_EARLY)
    return classified, cause


def _decide_after_end(
    facts: TaskFacts,
    attempt: AttemptFacts,
    report: AttemptReport,
    reported: ChangeAttempt,
    phases: tuple[PhaseStep, ...],
    now: datetime,
) -> ChangeTask | IgnoredReport:
    """Release an attempt that the control plane ended, and record its phases before the end."""
    if attempt.released_at is not None:
        return IgnoredReport("already_ended")
    steps = phase_steps(facts.state, attempt.state, phases)
    if report.gone and report.state in TERMINAL:
        change = release_task(
            facts, ReleaseKind.CONFIRMED, Reason.RELEASED, now=now, report=reported
        )
        return replace(change, steps=(*steps, *change.steps))
    if not steps:
        return IgnoredReport("already_ended")
    change = keep_task(facts, now=now)
    assert change.attempt is not None
    kept = replace(
        change.attempt, report_seq=reported.report_seq, phase_number=reported.phase_number
    )
    return replace(change, steps=steps, attempt=kept)


def _progress(
    facts: TaskFacts,
    attempt: AttemptFacts,
    reported: ChangeAttempt,
    phases: tuple[PhaseStep, ...],
    now: datetime,
) -> ChangeTask:
    # A cell of the previous version reports only the current phase. After MAX_PHASES changes, no
    # more are recorded.
    has_list = bool(phases) or attempt.phase_number >= MAX_PHASES
    if not has_list and reported.phase and reported.phase != attempt.phase:
        phases = (PhaseStep(now, Reason.BUILDING, reported.phase),)
    steps = phase_steps(facts.state, attempt.state, phases)
    return replace(keep_task(facts, now=now), steps=steps, attempt=reported)


def _facts_of(report: AttemptReport, attempt: AttemptFacts, now: datetime) -> ChangeAttempt:
    """Return the reported columns, with times clamped between the attempt's creation and now."""
    started_at = _clamp_instant(report.started_at, attempt.created_at, now)
    if started_at is None and report.state is TaskState.RUNNING:
        started_at = now
    finished_at = None
    if report.state in _ENDS:
        finished_at = _clamp_instant(report.finished_at, _earliest_start(attempt, started_at), now)
    return ChangeAttempt(
        uid=attempt.uid,
        state_from=attempt.state,
        state_to=attempt.state,
        report_seq=report.seq,
        phase=report.phase,
        phase_number=phase_number(report),
        progress=report.progress,
        container_id=report.container_id,
        exit_code=report.exit_code,
        failure_kind=report.failure_kind,
        reason=report.reason,
        message=report.message,
        result=report.result,
        result_truncated=report.result_truncated,
        usage=report.usage,
        details=_details(report),
        started_at=started_at,
        finished_at=finished_at,
    )


def _details(report: AttemptReport) -> Mapping[str, Any] | None:
    """Return the less frequent columns: addresses, stored outputs, phase and state of a runner."""
    details = {
        "addresses": report.addresses,
        "outputs": report.outputs,
        "plugin_phase": report.plugin_phase,
        "plugin_state": report.plugin_state,
    }
    return {name: value for name, value in details.items() if value is not None} or None


def _earliest_start(attempt: AttemptFacts, started_at: datetime | None) -> datetime:
    """Return the earliest reported start, which is the lower bound of the end.

    The engine's time, which is reported with the end, may be earlier than the cell's.
    """
    starts = [at for at in (attempt.started_at, started_at) if at is not None]
    return min(starts, default=attempt.created_at)


def _clamp_instant(seconds: float | None, earliest: datetime, latest: datetime) -> datetime | None:
    if seconds is None:
        return None
    return max(min(datetime.fromtimestamp(seconds, UTC), latest), earliest)


# The ends that hooks classify; other ends were ordered.
_CLASSIFIED_BY_HOOK = frozenset(
    {Event.EXITED_ZERO, Event.USER_FAILED, Event.SYSTEM_FAILED, Event.VANISHED},
)
_ORDERED_BY_LIMIT = {
    "timeout": Reason.TIMEOUT,
    "idle_timeout": Reason.IDLE_TIMEOUT,
    "lifetime_over": Reason.LIFETIME_OVER,
}
_EVENT_OF_STATE = {
    TaskState.BUILDING: (Event.BUILDING, Reason.BUILDING),
    TaskState.RUNNING: (Event.STARTED, Reason.STARTED),
    TaskState.SUCCEEDED: (Event.EXITED_ZERO, Reason.SUCCEEDED),
    TaskState.PREEMPTED: (Event.DRAINED, Reason.DRAINED),
}


def _event(report: AttemptReport, attempt: AttemptFacts) -> tuple[Event, ChangeCause]:
    release = ReleaseKind.CONFIRMED if report.gone else None
    message = report.message or ""
    if report.state in _EVENT_OF_STATE:
        event, reason = _EVENT_OF_STATE[report.state]
        note = report.phase or "" if report.state is TaskState.BUILDING else ""
        return event, ChangeCause(reason, note, release=release)
    if report.state is TaskState.KILLED:
        if report.reason in _ORDERED_BY_LIMIT:
            return Event.KILLED, ChangeCause(
                _ORDERED_BY_LIMIT[report.reason], message, release=release
            )
        return Event.VANISHED, ChangeCause(Reason.STOPPED_UNASKED, message, release=release)
    if report.state is TaskState.WORKER_FAILED:
        return _decide_worker_failed(
            report, attempt, ChangeCause(Reason.REFUSED, message, release=release)
        )
    return _failure(report, release, message)


def _decide_worker_failed(
    report: AttemptReport, attempt: AttemptFacts, cause: ChangeCause
) -> tuple[Event, ChangeCause]:
    if report.reason == "lease_over":
        return Event.VANISHED, replace(cause, reason=Reason.LEASE_OVER)
    if attempt.state is TaskState.ASSIGNED and report.reason == "refused":
        return Event.REFUSED, cause
    return Event.VANISHED, replace(cause, reason=Reason.CONTAINER_VANISHED)


_USER_REASONS = {
    "oom": Reason.OUT_OF_MEMORY,
    IMAGE: Reason.IMAGE_ERROR,
    COMMAND: Reason.COMMAND_ERROR,
    "exit": Reason.EXIT_STATUS,
    "health_check": Reason.HEALTH_CHECK_FAILED,
}


_MESSAGE_IS_REASON = frozenset(
    {
        Reason.IMAGE_ERROR,
        Reason.COMMAND_ERROR,
        Reason.USER_ERROR,
        Reason.HEALTH_CHECK_FAILED,
    }
)


def _failure(
    report: AttemptReport, release: ReleaseKind | None, message: str
) -> tuple[Event, ChangeCause]:
    if report.failure_kind is FailureKind.SYSTEM:
        is_corrupt = report.reason == INPUT_CORRUPT
        reason = Reason.INPUT_CORRUPT if is_corrupt else Reason.SYSTEM_FAILURE
        return Event.SYSTEM_FAILED, ChangeCause(reason, message, release=release)
    if report.failure_kind is FailureKind.OUTSIDE:
        outside = report.reason == "killed_outside"
        reason = Reason.STOPPED_OUTSIDE if outside else Reason.CONTAINER_VANISHED
        return Event.VANISHED, ChangeCause(reason, message, release=release)
    reason = _USER_REASONS.get(report.reason or "exit", Reason.USER_ERROR)
    # Diego's clients expect "exit status 1"; if the program never ran, the message is shown.
    text = f"exit status {report.exit_code}" if reason is Reason.EXIT_STATUS else None
    if reason in _MESSAGE_IS_REASON and message:
        text = message
    is_permanent = report.reason in PERMANENT
    cause = ChangeCause(
        reason,
        message,
        release=release,
        failure_reason=text,
        # A runner may report a failure as final (Flyte: a permanent failure).
        is_final=report.reason == RUNNER_FINAL,
        is_permanent=is_permanent,
        elsewhere=is_permanent or report.reason == NOT_HERE,
    )
    return Event.USER_FAILED, cause
