"""Retry the stages of an attempt, with pauses; failures of kind USER are not retried."""

from collections.abc import Callable
from typing import TypeVar

from controlplane.contract.states import FailureKind
from workers.attempt.outcome import ENGINE, AttemptFailed
from workers.attempt.runtime import EngineAway, EngineError

T = TypeVar("T")
Judge = Callable[[str, int | None], AttemptFailed]


def with_tries(
    stage: str,
    action: Callable[[], T],
    *,
    judge: Judge,
    pause: Callable[[float], None],
    back_off: tuple[float, ...],
    note: Callable[[str], None],
) -> T:
    """Return the value of `action`, tried again after each pause of `back_off`.

    `note` gets the text of each failed try that another follows. Raise AttemptFailed.
    """
    tries = len(back_off) + 1
    for number, seconds in enumerate(back_off, 1):
        try:
            return action()
        except (EngineAway, EngineError, AttemptFailed) as error:
            failure = _to_failure(stage, error, judge)
            if failure.kind is not FailureKind.SYSTEM:
                raise failure from error
        note(f"try {number} of {tries} failed: {failure.message}")
        pause(seconds)
    try:
        return action()
    except (EngineAway, EngineError, AttemptFailed) as error:
        failure = _to_failure(stage, error, judge)
        if failure.kind is FailureKind.SYSTEM:
            failure.message += f" (tried {tries} times)"
        raise failure from error


def _to_failure(stage: str, error: Exception, judge: Judge) -> AttemptFailed:
    if isinstance(error, AttemptFailed):
        return error
    if isinstance(error, EngineError):
        return judge(str(error), error.status)
    message = f"{stage}: the engine does not answer: {error}"
    return AttemptFailed(FailureKind.SYSTEM, ENGINE, message)
