"""A stage is tried three times, but never for what only the user can cure."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from controlplane.contract.messages.reports import SPEC
from controlplane.contract.states import FailureKind
from workers.attempt.outcome import ENGINE, AttemptFailed
from workers.attempt.runtime import EngineAway, EngineError
from workers.attempt.stage_retry import with_tries

BACK_OFF = (1.0, 4.0)


class Stage:
    """Raises `errors` one after the other, then returns; remembers its pauses."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.pauses: list[float] = []
        self.notes: list[str] = []
        self.tries = 0

    def __call__(self) -> str:
        self.tries += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"

    def run(self, pause: Callable[[float], None] | None = None) -> str:
        context = SimpleNamespace(back_off=BACK_OFF)
        attempt: Any = SimpleNamespace(context=context, note_try=self.notes.append)
        return with_tries(attempt, "create", self, pause=pause or self.pauses.append)


def test_success_needs_one_try() -> None:
    stage = Stage()
    assert (stage.run(), stage.tries, stage.pauses) == ("done", 1, [])


def test_third_try_may_succeed() -> None:
    stage = Stage(EngineAway("gone"), EngineError("broken", 500))
    assert (stage.run(), stage.tries, stage.pauses) == ("done", 3, [1.0, 4.0])


def test_third_failure_ends_the_stage_with_the_engine_message() -> None:
    stage = Stage(*[EngineError("broken pipe", 500)] * 4)
    with pytest.raises(AttemptFailed) as raised:
        stage.run()
    assert (raised.value.kind, raised.value.reason) == (FailureKind.SYSTEM, ENGINE)
    assert raised.value.message == "create: broken pipe (tried 3 times)"
    assert stage.tries == 3


def test_failure_message_names_the_unanswered_stage() -> None:
    with pytest.raises(AttemptFailed) as raised:
        Stage(*[EngineAway("connection refused")] * 3).run()
    assert raised.value.message.startswith("create: the engine does not answer: connection refused")


def test_user_failure_is_not_retried() -> None:
    stage = Stage(EngineError("invalid user", 400))
    with pytest.raises(AttemptFailed) as raised:
        stage.run()
    assert (raised.value.kind, raised.value.reason) == (FailureKind.USER, SPEC)
    assert (stage.tries, stage.pauses) == (1, [])


def test_stop_in_a_pause_prevents_the_next_try() -> None:
    def stopped(seconds: float) -> None:
        raise AttemptFailed(None, "stopped", "")

    stage = Stage(EngineAway("gone"))
    with pytest.raises(AttemptFailed) as raised:
        stage.run(stopped)
    assert (raised.value.reason, stage.tries) == ("stopped", 1)
