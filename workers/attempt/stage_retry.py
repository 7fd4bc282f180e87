"""Retry the stages of an attempt, with pauses; failures of kind USER are not retried."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from controlplane.contract.states import FailureKind
from workers.attempt.attempt import AttemptRun
from workers.attempt.outcome import ENGINE, AttemptFailed, judge_start_error
from workers.attempt.runtime import EngineAway, EngineError

T = TypeVar("T")
Judge = Callable[[str, int | None], AttemptFailed]


def with_tries(
    attempt: AttemptRun,
    stage: str,
    action: Callable[[], T],
    judge: Judge | None = None,
    *,
    pause: Callable[[float], None] | None = None,
    longer: tuple[float, ...] = (),
) -> T:
    """Return the value of `action`, tried again after each pause of the back-off and of `longer`.

    The attempt notes each failed try that another follows. `judge` classifies engine errors; by
    default as errors of the start. Raise AttemptFailed.
    """
    judge = judge or partial(judge_start_error, stage)
    back_off = attempt.context.back_off + longer
    tries = len(back_off) + 1
    for number, seconds in enumerate(back_off, 1):
        try:
            return action()
        except (EngineAway, EngineError, AttemptFailed) as error:
            failure = _to_failure(stage, error, judge)
            if failure.kind is not FailureKind.SYSTEM:
                raise failure from error
        attempt.note_try(f"try {number} of {tries} failed: {failure.message}")
        (pause or attempt.pause)(seconds)
    try:
        return action()
    except (EngineAway, EngineError, AttemptFailed) as error:
        failure = _to_failure(stage, error, judge)
        if failure.kind is FailureKind.SYSTEM:
            failure.message += f" (tried {tries} times)"
        raise failure from error


def system_failure(reason: str) -> Judge:
    """Return a judge that makes every engine error a system failure for `reason`."""
    return lambda text, status: AttemptFailed(FailureKind.SYSTEM, reason, text)


def _to_failure(stage: str, error: Exception, judge: Judge) -> AttemptFailed:
    if isinstance(error, AttemptFailed):
        return error
    if isinstance(error, EngineError):
        return judge(str(error), error.status)
    message = f"{stage}: the engine does not answer: {error}"
    return AttemptFailed(FailureKind.SYSTEM, ENGINE, message)
