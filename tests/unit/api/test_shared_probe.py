"""A shared probe is called once for all callers of its maximum age."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from controlplane.api.operators.shared_probe import SharedProbe

CALLERS = 8


def test_a_result_is_repeated_until_its_maximum_age() -> None:
    time, results = [0.0], iter("abc")
    probe = SharedProbe(lambda: next(results), now=lambda: time[0])
    found = []
    for time[0] in (0.0, 0.99, 1.0, 1.5, 2.0):
        found.append(probe.get(max_age_seconds=1.0))
    assert found == ["a", "a", "b", "b", "c"]


def test_concurrent_callers_share_one_call() -> None:
    """A second call would meet the first one; alone, the first one waits in vain."""
    meeting, calls = threading.Barrier(2), []

    def call() -> int:
        calls.append(1)
        with suppress(threading.BrokenBarrierError):
            meeting.wait(timeout=0.3)
        return len(calls)

    probe = SharedProbe(call)
    with ThreadPoolExecutor(CALLERS) as pool:
        found = list(pool.map(lambda _: probe.get(max_age_seconds=60.0), range(CALLERS)))
    assert found == [1] * CALLERS


def test_a_failed_call_is_repeated() -> None:
    results = iter([ValueError("once"), "ok"])

    def call() -> object:
        result = next(results)
        if isinstance(result, Exception):
            raise result
        return result

    probe = SharedProbe(call)
    with pytest.raises(ValueError, match="once"):
        probe.get(max_age_seconds=60.0)
    assert probe.get(max_age_seconds=60.0) == "ok"
