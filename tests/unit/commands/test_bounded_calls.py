"""Calls in bounded time: an answer, an error or a refusal, and never a wait without end."""

from threading import Event as Signal
from threading import current_thread, main_thread

import pytest

from controlplane.commands.hooks.bounded_calls import MOST_STUCK, BoundedCalls
from controlplane.domain.hooks.interface import HookUnavailable

SOON = 0.02


def test_call_returns_the_result_or_raises_the_error() -> None:
    calls = BoundedCalls()
    assert calls.call("a", lambda: 5) == 5
    assert calls.call("a", current_thread) is not main_thread()
    with pytest.raises(ZeroDivisionError):
        calls.call("a", lambda: 1 // 0)


def test_system_exit_in_a_hook_is_reported_as_unavailable() -> None:
    def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(HookUnavailable, match="SystemExit"):
        BoundedCalls().call("a", leave)


def test_slow_hook_times_out_and_is_blocked_until_a_call_returns() -> None:
    calls, signals = BoundedCalls(), [Signal() for _ in range(MOST_STUCK)]
    for signal in signals:
        with pytest.raises(HookUnavailable, match="longer than"):
            calls.call("a", signal.wait, SOON)
    with pytest.raises(HookUnavailable, match="4 earlier calls of it have not returned"):
        calls.call("a", lambda: 5)
    assert calls.call("b", lambda: 5) == 5
    returned = Signal()
    calls._count = _telling(calls, returned)  # type: ignore[method-assign]
    signals[0].set()
    assert returned.wait(10)
    assert calls.call("a", lambda: 5) == 5
    for signal in signals:
        signal.set()


def _telling(calls: BoundedCalls, returned: Signal):  # type: ignore[no-untyped-def]
    count = BoundedCalls._count

    def count_and_signal(name: str, change: int) -> None:
        count(calls, name, change)
        returned.set()

    return count_and_signal
