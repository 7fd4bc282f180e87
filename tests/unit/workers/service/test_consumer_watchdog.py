"""The watch over the consumer continues after failing checks."""

import threading
from collections.abc import Iterator

import pytest

from workers.service.consumer_watchdog import ConsumerWatch


def test_failing_check_does_not_end_the_watchdog(monkeypatch: pytest.MonkeyPatch) -> None:
    results: Iterator[bool] = iter([False, True])

    def check(watch: ConsumerWatch, now: float) -> bool:
        if not next(results, True):
            raise RuntimeError("can't start new thread")
        return True

    monkeypatch.setattr(ConsumerWatch, "check", check)
    stuck = threading.Event()
    watch = ConsumerWatch("redis://127.0.0.1:1/0", ["q"], stuck.set, poll_seconds=0.001)
    watch.start()
    assert stuck.wait(30)
    watch.close()
