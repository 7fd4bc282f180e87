"""Sync: what is sent again, what is stopped, and what is left alone."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from controlplane.contract.messages.orders import RunAttempt, StopAttempt
from controlplane.contract.states import TaskState as S
from controlplane.domain.cells.sync import (
    IN_FLIGHT,
    ExpectedAttempt,
    SyncResponse,
    decide_sync,
    find_different,
)
from controlplane.domain.state.states import ACTIVE, ATTEMPT_STATES, TERMINAL
from tests.harness.domain.facts import NOW

OLD = NOW - timedelta(minutes=1)
BEFORE = NOW + timedelta(seconds=30)
ONE = ExpectedAttempt(
    uid="u1",
    spec_id=2,
    task_id=3,
    task_index=4,
    number=5,
    state=S.RUNNING,
    created_at=OLD,
    start_before=BEFORE,
)
NOTHING = SyncResponse((), ())


def decide(held: dict[str, S], items: list[ExpectedAttempt], *, now: datetime) -> SyncResponse:
    """Decide with the definitions of those that differ only, as a heartbeat does."""
    unreleased = {item.uid: item.state in TERMINAL for item in items}
    different = find_different(held, unreleased)
    found = decide_sync(
        held, unreleased, [item for item in items if item.uid in different], now=now
    )
    assert found == decide_sync(held, unreleased, items, now=now)
    return found


@pytest.mark.parametrize("state", sorted(ACTIVE))
def test_missing_order_is_sent_again(state: S) -> None:
    answer = decide({}, [replace(ONE, state=state)], now=NOW)
    assert answer == SyncResponse((RunAttempt("u1", 2, 3, 4, 5, BEFORE.timestamp()),), ())


@pytest.mark.parametrize("state", sorted(ACTIVE))
def test_expected_attempt_gets_no_order(state: S) -> None:
    assert decide({"u1": state}, [replace(ONE, state=state)], now=NOW) == NOTHING


def test_order_still_in_flight_is_not_sent_again() -> None:
    def runs(age: timedelta) -> int:
        return len(decide({}, [replace(ONE, created_at=NOW - age)], now=NOW).runs)

    moment = timedelta(milliseconds=1)
    assert timedelta(seconds=5) == IN_FLIGHT
    assert [runs(IN_FLIGHT - moment), runs(IN_FLIGHT), runs(IN_FLIGHT + moment)] == [0, 1, 1]


@pytest.mark.parametrize("state", sorted(TERMINAL & ATTEMPT_STATES))
@pytest.mark.parametrize("held", [{}, {"u1": S.RUNNING}])
def test_an_ended_attempt_is_stopped_whether_it_was_listed_or_not(
    state: S, held: dict[str, S]
) -> None:
    ended = replace(
        ONE, state=state, stop_reason="timeout", stop_force=True, stop_grace_seconds=3.0
    )
    answer = decide(held, [ended], now=NOW)
    assert answer == SyncResponse((), (StopAttempt("u1", "timeout", 3.0, True),))


def test_stop_without_a_reason_uses_the_default_reason_and_grace() -> None:
    answer = decide({}, [replace(ONE, state=S.KILLED)], now=NOW)
    assert answer.stops == (StopAttempt("u1", "stopped", 10.0, False),)


def test_unexpected_attempt_is_stopped() -> None:
    answer = decide({"u1": S.RUNNING, "u9": S.RUNNING}, [ONE], now=NOW)
    assert answer == SyncResponse((), (StopAttempt("u9", "not wanted"),))


def test_ended_attempts_are_stopped_first_and_once() -> None:
    held = {"u9": S.RUNNING, "u2": S.RUNNING}
    ended = replace(ONE, uid="u2", state=S.KILLED)
    answer = decide(held, [ONE, ended], now=NOW)
    assert [run.uid for run in answer.runs] == ["u1"]
    assert [stop.uid for stop in answer.stops] == ["u2", "u9"]


def test_attempt_that_was_released_since_it_was_compared_gets_no_order() -> None:
    assert decide_sync({}, {"u1"}, [], now=NOW) == NOTHING


def test_only_ended_and_missing_attempts_differ() -> None:
    unreleased = {"held": False, "missing": False, "ended": True, "ended and held": True}
    held = {"held", "ended and held", "unknown"}
    assert find_different(held, unreleased) == ["missing", "ended", "ended and held"]
