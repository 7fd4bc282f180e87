"""The steps of an attempt, in order: see BUILD, START and ADOPT.

A step returns, or raises AttemptFailed, which ends the attempt. In every case exactly one
EndedEvent is reported, and only when no part of the attempt runs or will run.
"""

from collections.abc import Callable

from controlplane.contract.codec import clean_text
from controlplane.contract.messages.reports import MESSAGE_CHARS
from controlplane.contract.states import FailureKind, Phase
from workers.attempt.attempt import AttemptRun, DriverClosed
from workers.attempt.events import EndedEvent
from workers.attempt.outcome import (
    DISK_LIMIT,
    ENGINE,
    HEALTH,
    VANISHED,
    AttemptFailed,
    Exit,
    judge_exit,
)
from workers.attempt.runtime import ContainerView
from workers.attempt.steps.checkpoint import (
    fetch_checkpoint,
    keep_leftovers,
    place_checkpoint,
)
from workers.attempt.steps.clean import ensure_ended
from workers.attempt.steps.collect import collect_output, collect_result, write_streams
from workers.attempt.steps.create import create_container
from workers.attempt.steps.gang import join_gang
from workers.attempt.steps.inputs import fetch_inputs, place_inputs
from workers.attempt.steps.inspect_container import inspect_adopted, inspect_own
from workers.attempt.steps.launch_context import read_launch_context
from workers.attempt.steps.outputs import keep_outputs
from workers.attempt.steps.permit import await_permit, check_cell_policy
from workers.attempt.steps.pull import ensure_image
from workers.attempt.steps.secrets import write_secrets
from workers.attempt.steps.start import start_container
from workers.attempt.steps.wait import wait_for_end
from workers.attempt.steps.workspace import check_begun, make_workspace
from workers.attempt.transfer.standard_input import check_fed
from workers.attempt.usage import note_use

Step = Callable[[AttemptRun], None]

BUILD: tuple[Step, ...] = (
    check_cell_policy,
    read_launch_context,
    fetch_inputs,
    fetch_checkpoint,
    ensure_image,
    write_secrets,
    join_gang,
    await_permit,
    create_container,
    place_inputs,
    place_checkpoint,
    start_container,
)
# A stop waits for these, which create nothing: only then is it known whether a process exists that
# must get its grace period.
INSPECTIONS: tuple[Step, ...] = (make_workspace, inspect_own, inspect_adopted)
START: tuple[Step, ...] = (make_workspace, inspect_own, *BUILD)
ADOPT: tuple[Step, ...] = (make_workspace, inspect_adopted, *BUILD)
# The names of steps in an attempt's usage; similar steps share one.
NAMES: dict[Step, str] = {
    make_workspace: "workspace",
    inspect_own: "workspace",
    inspect_adopted: "workspace",
    check_cell_policy: "briefing",
    read_launch_context: "briefing",
    fetch_inputs: "inputs",
    fetch_checkpoint: "inputs",
    ensure_image: "pull",
    write_secrets: "secrets",
    join_gang: "gang",
    await_permit: "permit",
    create_container: "create",
    place_inputs: "inputs",
    place_checkpoint: "inputs",
    start_container: "start",
}


def run(attempt: AttemptRun, steps: tuple[Step, ...]) -> None:
    """Run the attempt through `steps` to its end, or until the driver is closed."""
    try:
        try:
            check_begun(attempt)
            build(attempt, steps)
            with attempt.step("wait"):
                view = wait_for_end(attempt)
            ended = _ended(attempt, view)
        except AttemptFailed as failure:
            ended = _failed(attempt, failure)
        except DriverClosed:
            raise
        except Exception as error:
            attempt.log.exception("attempt_failed_unexpectedly")
            message = f"{type(error).__name__}: {error}"
            ended = _failed(attempt, AttemptFailed(FailureKind.SYSTEM, ENGINE, message))
        attempt.emit(ended)
        attempt.end_reported = True
    except DriverClosed:
        return


def end_at_once(attempt: AttemptRun, view: ContainerView) -> None:
    """Report the end of an attempt that had no thread and left nothing to collect."""
    attempt.mark_ended()
    try:
        attempt.emit(_ended(attempt, view))
        attempt.end_reported = True
    except DriverClosed:
        return


def build(attempt: AttemptRun, steps: tuple[Step, ...]) -> None:
    """Run the steps up to the start; skip the rest once the container is started."""
    for step in steps:
        if step not in INSPECTIONS:
            attempt.check()
        if step is BUILD[0]:
            attempt.enter(Phase.PREPARING)  # repeated after a restart of the cell
        with attempt.step(NAMES.get(step, step.__name__)):
            step(attempt)
        if attempt.is_started:
            return


def _ended(attempt: AttemptRun, view: ContainerView | None) -> EndedEvent:
    """Return the end of an attempt whose process ran."""
    with attempt.step("collect"):
        collect_output(attempt)
    note_use(attempt, view)
    if view is not None:
        check_fed(attempt)
    stopped_for = attempt.stopped_for
    if view is None or view.exit_code is None:
        if view is not None:
            keep_leftovers(attempt)
        kind = None if stopped_for else FailureKind.OUTSIDE
        return EndedEvent(
            attempt.uid,
            attempt.context.now(),
            failure_kind=kind,
            reason=stopped_for or VANISHED,
            message="its container is gone" if view is None else "its end was not recorded",
            started_at=attempt.started_at,
            outputs=attempt.outputs,
            container_id=attempt.container_id,
            usage=attempt.used(),
        )
    verdict = judge_exit(Exit(view.exit_code, view.out_of_memory, stopped_for, view.stopped))
    message = verdict.message
    if verdict.reason in (HEALTH, DISK_LIMIT):
        message = attempt.unhealthy or message
    write_streams(attempt, is_success=verdict.reason is None)
    result, truncated = None, False
    if view.exit_code == 0:
        with attempt.step("collect"):
            result, truncated = collect_result(attempt)
    if verdict.reason is not None:
        keep_leftovers(attempt)
    elif attempt.launch.spec.outputs:
        with attempt.step("outputs"):
            keep_outputs(attempt)
    # The start was reported when the engine answered, which for a short process may be after
    # its end: the engine's time is better, except after a health check.
    started_at = view.started_at or attempt.started_at or 0.0
    if attempt.launch.spec.health_check is not None:
        started_at = attempt.started_at or 0.0
    return EndedEvent(
        attempt.uid,
        max(view.ended_at or attempt.context.now(), started_at),
        exit_code=view.exit_code,
        failure_kind=verdict.kind,
        reason=verdict.reason,
        message=message,
        result=result,
        result_truncated=truncated,
        outputs=attempt.outputs,
        started_at=started_at or None,
        container_id=attempt.container_id,
        usage=attempt.used(),
    )


def _failed(attempt: AttemptRun, failure: AttemptFailed) -> EndedEvent:
    """Return the end of an attempt that failed in a step."""
    attempt.mark_ended()
    ensure_ended(attempt)
    keep_leftovers(attempt)
    try:
        attempt.context.shipper.finish(attempt.uid, 0.0)
    except Exception:  # its end is reported even if its output is lost
        attempt.log.exception("output_not_sent")
    return EndedEvent(
        attempt.uid,
        attempt.context.now(),
        exit_code=failure.exit_code,
        failure_kind=failure.kind,
        reason=failure.reason,
        message=clean_text(failure.message, MESSAGE_CHARS),
        outputs=attempt.outputs,
        started_at=attempt.started_at,
        container_id=attempt.container_id,
        usage=attempt.used(),
        never_created=attempt.never_created,
    )
