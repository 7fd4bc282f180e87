"""Conversion of events to effects, by the transition table."""

from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from controlplane.contract.records import record
from controlplane.contract.states import FailureKind, TaskState
from controlplane.domain.state.backoff import wait_seconds
from controlplane.domain.state.effects import ChangeAttempt, ChangeTask, Step
from controlplane.domain.state.facts import TaskFacts
from controlplane.domain.state.growth import GrownRequest, grow
from controlplane.domain.state.phases import PhaseSequence, PhaseStep
from controlplane.domain.state.retry_rules import MatchedRule, match_rule
from controlplane.domain.state.states import (
    ACTIVE,
    TERMINAL,
    Reason,
    ReleaseKind,
    RetryAction,
    RetryBudget,
    failure_reason_of,
)
from controlplane.domain.state.transitions import (
    Event,
    RetryLimits,
    TransitionResult,
    advance,
    is_ruled,
    works_again,
)
from controlplane.spec.parts import GROWABLE_REASONS

MOST_AVOIDED = 16
"""Maximum number of cells that a task avoids: the latest on which it failed."""


@record
class ChangeCause:
    """The reason of a change, and further facts. `release`: set if the container is gone.

    `never_created`: the cell never created the container. `is_final`: no retry can fix the failure.
    `is_permanent`: the same, unless the limits of the task allow retries of such failures.
    `elsewhere`: a retry avoids the cell, even if the table prefers it.
    """

    reason: Reason
    message: str = ""
    release: ReleaseKind | None = None
    force: bool = False
    by_dependency: bool = False
    failure_reason: str | None = None
    never_created: bool = False
    is_final: bool = False
    is_permanent: bool = False
    elsewhere: bool = False


def change_task(
    facts: TaskFacts,
    event: Event,
    cause: ChangeCause,
    *,
    now: datetime,
    report: ChangeAttempt | None = None,
    phases: tuple[PhaseStep, ...] = (),
) -> ChangeTask:
    """Return the change that `event` makes, with the reported facts of `report`.

    `phases`: earlier phases of the attempt. Raise IllegalTransition.
    """
    attempt = facts.attempt if facts.attempt and facts.attempt.released_at is None else None
    started_at = _started_at(facts, report)
    finished_at = (report.finished_at if report else None) or now
    # For a waiting task, the start time is that of its last attempt.
    is_active = facts.state in ACTIVE
    ran = (finished_at - started_at).total_seconds() if started_at and is_active else 0.0
    matched = _matched_rule(facts, event, cause, report)
    outcome, grown = _advance(facts, event, cause, matched, ran)
    change = None
    if attempt is not None and outcome.attempt is not None:
        ended = outcome.attempt in TERMINAL
        base = report or ChangeAttempt(attempt.uid, attempt.state, attempt.state)
        change = replace(
            base,
            state_from=attempt.state,
            state_to=outcome.attempt,
            charged=outcome.charged,
            charge=outcome.charge,
            failure_kind=base.failure_kind or _kind_of(event, outcome),
            finished_at=finished_at if ended else None,
            reason=cause.reason if ended else base.reason,
            message=(cause.message or base.message) if ended else base.message,
            release=cause.release if ended else None,
            stop_reason=cause.reason if ended and cause.release is None else None,
            stop_force=cause.force,
            retry_rule=matched.number if matched else None,
        )
    prefers_cell = outcome.prefers_cell and not cause.elsewhere
    return ChangeTask(
        job_id=facts.job_id,
        group_id=facts.group_id,
        task_id=facts.task_id,
        task_from=facts.state,
        task_to=outcome.task,
        counters=outcome.counters,
        at=now,
        steps=_steps(
            facts, outcome, _explained(cause, matched, outcome, grown), now, report, phases
        ),
        attempt=change,
        attempt_open=attempt is not None and (change is None or change.release is None),
        not_before=_not_before(facts, outcome, now),
        avoid_cell_ids=_avoided(facts, event, cause, outcome, ran),
        prefer_cell_id=attempt.cell_id if attempt and prefers_cell else None,
        started_at=started_at,
        failure_reason=_failure_reason(outcome, cause, matched, grown),
        by_dependency=cause.by_dependency,
        resources=None if grown is None or grown.refusal else grown.resources,
    )


def release_task(
    facts: TaskFacts,
    kind: ReleaseKind,
    cause: Reason,
    *,
    now: datetime,
    report: ChangeAttempt | None = None,
    message: str = "",
) -> ChangeTask:
    """Return the change that releases the ended attempt, with the reported facts of `report`."""
    attempt = facts.attempt
    assert attempt is not None, "there is nothing to release"
    base = report or ChangeAttempt(attempt.uid, attempt.state, attempt.state)
    step = Step(facts.state, facts.state, attempt.state, cause, now, message)
    return replace(
        keep_task(facts, now=now),
        steps=(step,),
        attempt=replace(
            base,
            state_from=attempt.state,
            state_to=attempt.state,
            finished_at=None,
            started_at=None,
            release=kind,
        ),
        attempt_open=False,
    )


def keep_task(facts: TaskFacts, *, now: datetime) -> ChangeTask:
    """Return a change that keeps the state of the task, to change only its attempt."""
    attempt = facts.attempt
    assert attempt is not None, "there is no attempt to change"
    return ChangeTask(
        job_id=facts.job_id,
        group_id=facts.group_id,
        task_id=facts.task_id,
        task_from=facts.state,
        task_to=facts.state,
        counters=facts.counters,
        at=now,
        attempt=ChangeAttempt(attempt.uid, attempt.state, attempt.state),
        attempt_open=attempt.released_at is None,
    )


def _matched_rule(
    facts: TaskFacts, event: Event, cause: ChangeCause, report: ChangeAttempt | None
) -> MatchedRule | None:
    """Return the retry rule of the group for an end; none overrides a runner's final failure."""
    if cause.is_final or not facts.retry_rules or not is_ruled(facts.state, event):
        return None
    return match_rule(facts.retry_rules, cause.reason, report.exit_code if report else None)


def _advance(
    facts: TaskFacts,
    event: Event,
    cause: ChangeCause,
    matched: MatchedRule | None,
    ran_seconds: float,
) -> tuple[TransitionResult, GrownRequest | None]:
    """Return the transition, and the request of a retry whose rule increases it.

    The task fails if nothing can ever run that request.
    """
    proceed = partial(
        advance,
        facts.state,
        event,
        counters=facts.counters,
        limits=_limits(facts.limits, cause, matched),
        ran_seconds=ran_seconds,
        is_final=facts.at_most_once and not cause.never_created,
    )
    outcome = proceed(action=matched.action if matched else None)
    grown = _grown(facts, cause, matched, outcome)
    if grown is not None and grown.refusal:
        outcome = proceed(action=RetryAction.FAIL)
    return outcome, grown


def _grown(
    facts: TaskFacts, cause: ChangeCause, matched: MatchedRule | None, outcome: TransitionResult
) -> GrownRequest | None:
    """Return the request of a retry after a failure of the program, if its rule increases it."""
    if matched is None or not matched.growth or facts.resources is None:
        return None
    is_failure = outcome.charged is RetryBudget.FAILURE and cause.reason in GROWABLE_REASONS
    if outcome.task is not TaskState.PENDING or not is_failure:
        return None
    return grow(matched.growth, facts.resources, facts.room)


def _limits(limits: RetryLimits, cause: ChangeCause, matched: MatchedRule | None) -> RetryLimits:
    """Return the limits for an end by `cause`, without retries if none can fix the failure.

    A retry rule applies to permanent failures, too.
    """
    is_permanent = cause.is_permanent and not limits.permanent and matched is None
    return replace(limits, failure=0) if cause.is_final or is_permanent else limits


def _avoided(
    facts: TaskFacts,
    event: Event,
    cause: ChangeCause,
    outcome: TransitionResult,
    ran_seconds: float,
) -> tuple[int, ...]:
    """Return the cells on which the task failed since it last worked, the latest last."""
    avoids = outcome.avoids_cell or (outcome.prefers_cell and cause.elsewhere)
    if not avoids and not facts.avoid_cell_ids:
        return ()  # the usual case
    is_cleared = outcome.task in TERMINAL or (
        works_again(event, ran_seconds) and not cause.elsewhere
    )
    earlier = () if is_cleared else facts.avoid_cell_ids
    if not avoids or facts.attempt is None:
        return earlier
    current = facts.attempt.cell_id
    return (*(cell_id for cell_id in earlier if cell_id != current), current)[-MOST_AVOIDED:]


def _kind_of(event: Event, outcome: TransitionResult) -> FailureKind | None:
    """Return the failure kind of a system failure without a reported kind."""
    is_system = event is Event.SYSTEM_FAILED or outcome.charged is RetryBudget.SYSTEM
    return FailureKind.SYSTEM if is_system else None


def _started_at(facts: TaskFacts, report: ChangeAttempt | None) -> datetime | None:
    if facts.attempt is None:
        return None
    return facts.attempt.started_at or (report.started_at if report else None)


def _steps(
    facts: TaskFacts,
    outcome: TransitionResult,
    cause: ChangeCause,
    now: datetime,
    report: ChangeAttempt | None,
    phases: tuple[PhaseStep, ...],
) -> tuple[Step, ...]:
    """Return the steps in order, including states that were not reported."""
    has_run = outcome.attempt in TERMINAL or outcome.attempt is TaskState.RUNNING
    sequence = PhaseSequence(
        facts.state, report.started_at if report is not None and has_run else None
    )
    sequence.add_phases(phases)
    sequence.start()
    is_reached = bool(sequence.steps) and sequence.state is outcome.attempt
    if not is_reached:
        sequence.steps.append(
            Step(sequence.state, outcome.task, outcome.attempt, cause.reason, now, cause.message)
        )
    return tuple(sequence.steps)


def _not_before(facts: TaskFacts, outcome: TransitionResult, now: datetime) -> datetime | None:
    seconds = wait_seconds(outcome.wait, outcome.counters, task_id=facts.task_id)
    return now + timedelta(seconds=seconds) if seconds else None


def _explained(
    cause: ChangeCause,
    matched: MatchedRule | None,
    outcome: TransitionResult,
    grown: GrownRequest | None,
) -> ChangeCause:
    """Return the cause with the effect of the retry rule in the message of the history."""
    if matched is None:
        return cause
    effect = matched.describe(is_retried=outcome.task is TaskState.PENDING, grown=grown)
    return replace(cause, message=f"{cause.message}: {effect}" if cause.message else effect)


def _failure_reason(
    outcome: TransitionResult,
    cause: ChangeCause,
    matched: MatchedRule | None,
    grown: GrownRequest | None,
) -> str:
    if outcome.task not in TERMINAL or outcome.task is TaskState.SUCCEEDED:
        return ""
    text = cause.failure_reason or failure_reason_of(cause.reason)
    if matched is not None and grown is not None and grown.refusal:
        has_factor = any(item.percent is not None for item in matched.growth)
        bound = "; max_resources of the rule bounds its growth" if has_factor else ""
        return f"{text} (not retried: {matched.name} {grown.refusal}{bound})"
    if matched is None or matched.action is not RetryAction.FAIL:
        return text
    return f"{text} (not retried: rule {matched.number} of on_exit)"
