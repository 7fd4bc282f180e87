"""No attempt that may still run is reported as ended, and its end is found later."""

from types import SimpleNamespace
from typing import cast

import structlog

from workers.attempt.attempt import AttemptRun
from workers.attempt.runtime import ContainerStatus, ContainerView, EngineAway
from workers.attempt.steps.clean import ensure_ended


def test_removal_is_retried_until_the_engine_confirms_it() -> None:
    answers: list[Exception | None] = [EngineAway("gone"), LookupError("of no known kind"), None]
    rests: list[float] = []

    def remove(uid: str) -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    engine = SimpleNamespace(
        remove=remove, view=lambda uid: ContainerView(ContainerStatus.RUNNING, "id")
    )
    attempt = SimpleNamespace(
        may_exist=True,
        uid="uid",
        engine=engine,
        rest=rests.append,
        log=structlog.get_logger(),
    )
    ensure_ended(cast("AttemptRun", attempt))
    assert (answers, len(rests)) == ([], 2)
