"""From an event to what it changes: the one way from the transition table to an effect."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from controlplane.contract.states import FailureKind, TaskState
from controlplane.domain.effects import ChangeAttempt, ChangeTask, Step
from controlplane.domain.retry import wait_seconds
from controlplane.domain.snapshots import TaskFacts
from controlplane.domain.states import (
    ACTIVE,
    TERMINAL,
    Budget,
    Reason,
    ReleaseKind,
    failure_reason_of,
)
from controlplane.domain.transitions import Event, Outcome, advance


@dataclass(frozen=True, slots=True)
class Cause:
    """Why, and what else is known. `release`: the container is known to be gone.

    `never_created`: its cell says that there never was one. `is_final`: a failure that no retry
    would cure.
    """

    reason: Reason
    message: str = ""
    release: ReleaseKind | None = None
    force: bool = False
    by_dependency: bool = False
    failure_reason: str | None = None
    never_created: bool = False
    is_final: bool = False


def change_task(
    facts: TaskFacts,
    event: Event,
    cause: Cause,
    *,
    now: datetime,
    report: ChangeAttempt | None = None,
) -> ChangeTask:
    """What `event` makes of the task, its cell having said `report`. Raises IllegalTransition."""
    attempt = facts.attempt if facts.attempt and facts.attempt.released_at is None else None
    started_at = _started_at(facts, report)
    finished_at = (report.finished_at if report else None) or now
    # What waits does not run, though its last attempt did.
    is_active = facts.state in ACTIVE
    ran = (finished_at - started_at).total_seconds() if started_at and is_active else 0.0
    outcome = advance(
        facts.state,
        event,
        counters=facts.counters,
        limits=replace(facts.limits, failure=0) if cause.is_final else facts.limits,
        ran_seconds=ran,
        is_final=facts.at_most_once and not cause.never_created,
    )
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
            failure_kind=base.failure_kind or _kind_of(outcome),
            finished_at=finished_at if ended else None,
            reason=cause.reason if ended else base.reason,
            message=(cause.message or base.message) if ended else base.message,
            release=cause.release if ended else None,
            stop_reason=cause.reason if ended and cause.release is None else None,
            stop_force=cause.force,
        )
    return ChangeTask(
        job_id=facts.job_id,
        group_id=facts.group_id,
        task_id=facts.task_id,
        task_from=facts.state,
        task_to=outcome.task,
        counters=outcome.counters,
        at=now,
        steps=_steps(facts, outcome, cause, now, report),
        attempt=change,
        attempt_open=attempt is not None and (change is None or change.release is None),
        not_before=_not_before(facts, outcome, now),
        avoid_cell_id=attempt.cell_id if attempt and outcome.avoids_cell else None,
        prefer_cell_id=attempt.cell_id if attempt and outcome.prefers_cell else None,
        started_at=started_at,
        failure_reason=_failure_reason(outcome, cause),
        by_dependency=cause.by_dependency,
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
    """The ended attempt of the task gives back its capacity. Facts of `report` are taken once."""
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
    """A change that leaves the task as it is, for what concerns its unreleased attempt alone."""
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


def _kind_of(outcome: Outcome) -> FailureKind | None:
    """What a charge to the system budget is called where no cell has named it."""
    return FailureKind.SYSTEM if outcome.charged is Budget.SYSTEM else None


def _started_at(facts: TaskFacts, report: ChangeAttempt | None) -> datetime | None:
    if facts.attempt is None:
        return None
    return facts.attempt.started_at or (report.started_at if report else None)


def _steps(
    facts: TaskFacts, outcome: Outcome, cause: Cause, now: datetime, report: ChangeAttempt | None
) -> tuple[Step, ...]:
    state, steps = facts.state, []
    ran_at = report.started_at if report is not None else None
    if ran_at is not None and state is not TaskState.RUNNING and outcome.attempt in TERMINAL:
        # A short life is told in one report: its start is history all the same.
        steps.append(Step(state, TaskState.RUNNING, TaskState.RUNNING, Reason.STARTED, ran_at))
        state = TaskState.RUNNING
    steps.append(Step(state, outcome.task, outcome.attempt, cause.reason, now, cause.message))
    return tuple(steps)


def _not_before(facts: TaskFacts, outcome: Outcome, now: datetime) -> datetime | None:
    seconds = wait_seconds(outcome.wait, outcome.counters, task_id=facts.task_id)
    return now + timedelta(seconds=seconds) if seconds else None


def _failure_reason(outcome: Outcome, cause: Cause) -> str:
    if outcome.task not in TERMINAL or outcome.task is TaskState.SUCCEEDED:
        return ""
    return cause.failure_reason or failure_reason_of(cause.reason)
