"""Build the final report of an attempt."""

from dataclasses import replace

from controlplane.contract.messages.phases import PhaseChange
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import FailureKind, TaskState
from workers.attempt.events import EndedEvent
from workers.attempt.outcome import KILLED_OUTSIDE, LEASE_OVER, LIMITS, STOPPED
from workers.cell_attempt import CellAttempt


def judge_end(record: CellAttempt, event: EndedEvent, *, is_fenced: bool = False) -> AttemptReport:
    """Return the final report: state and facts. The container is gone or stopped permanently.

    `is_fenced`: the guard ended the attempt, which takes precedence over the driver's reason.
    """
    if is_fenced and event.reason not in (*LIMITS, STOPPED, LEASE_OVER):
        message = "ended by the guard before the lease of its cell expired"
        event = replace(event, failure_kind=FailureKind.OUTSIDE, reason=LEASE_OVER, message=message)
    if event.reason == KILLED_OUTSIDE and (record.stop is not None or record.is_moving):
        # The signal was the cell's, but no cell process was running at the end.
        event = replace(event, failure_kind=None, reason=STOPPED, message="stopped by order")
    return AttemptReport(
        uid=record.uid,
        seq=0,
        state=_state(record, event),
        phase=record.phase,
        progress=record.progress,
        container_id=event.container_id or record.container_id,
        exit_code=event.exit_code,
        failure_kind=event.failure_kind,
        reason=event.reason,
        message=event.message,
        result=event.result,
        result_truncated=event.result_truncated,
        usage=event.usage,
        outputs=event.outputs,
        addresses=record.addresses,
        plugin_phase=record.plugin_phase,
        plugin_state=record.plugin_state,
        started_at=event.started_at or record.started_at,
        finished_at=event.at,
        gone=True,
        never_created=event.never_created,
        phases=record.reportable_phases,
    )


def refusal(
    uid: str,
    why: str,
    at: float,
    *,
    never_created: bool = False,
    phases: tuple[PhaseChange, ...] = (),
) -> AttemptReport:
    """Return the report of a refused attempt: no container of it will be created (again)."""
    return AttemptReport(
        uid=uid,
        seq=0,
        state=TaskState.WORKER_FAILED,
        failure_kind=FailureKind.OUTSIDE,
        reason="refused",
        message=why,
        finished_at=at,
        gone=True,
        never_created=never_created,
        phases=phases,
    )


def _state(record: CellAttempt, event: EndedEvent) -> TaskState:
    if event.reason in LIMITS:
        return TaskState.KILLED
    # Many programs end with exit status 0 after a stop signal: that is not a success.
    if event.reason != STOPPED and event.failure_kind is None and event.exit_code == 0:
        return TaskState.SUCCEEDED
    if record.stop is not None:
        return TaskState.KILLED
    if record.is_moving:
        return TaskState.PREEMPTED
    if event.reason == LEASE_OVER:
        return TaskState.WORKER_FAILED
    return TaskState.KILLED if event.reason == STOPPED else TaskState.FAILED
