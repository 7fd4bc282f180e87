"""A failed test runs again only if the engine hung or was replaced while it ran."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.harness.engine_hangs import EngineHangs, summary_of_dump

DUMP = """\
goroutine 7 [semacquire, 2 minutes]:
sync.runtime_SemacquireMutex(0xc000a, 0x0, 0x1)
\t/usr/lib/go/src/runtime/sema.go:71 +0x25
sync.(*Mutex).lockSlow(0xc000b)
\t/usr/lib/go/src/sync/mutex.go:138 +0x165
github.com/docker/libnetwork.(*network).getSvcRecords(0xc000c, 0xc000d)
\t/build/libnetwork/network.go:1415 +0xbd

goroutine 8 [IO wait]:
internal/poll.runtime_pollWait(0x7f, 0x72)
\t/usr/lib/go/src/runtime/netpoll.go:305 +0x89
"""


class FakeEngine:
    """An engine that started at `start` and hangs until it is restarted."""

    def __init__(self, *, start: float, is_hanging: bool) -> None:
        self.start = start
        self.is_hanging = is_hanging
        self.restarts = 0

    def hangs(self) -> bool:
        return self.is_hanging

    def restart(self) -> str:
        self.restarts += 1
        self.is_hanging = False
        self.start = 100.0
        return "blocked in getSvcRecords"

    def started_at(self) -> float:
        return self.start

    @contextmanager
    def locked(self) -> Iterator[None]:
        yield


def test_failure_beside_an_engine_that_answers_stands() -> None:
    engine = FakeEngine(start=10, is_hanging=False)
    hangs = EngineHangs(engine)
    hangs.begin("a", 20)
    assert not hangs.failed("a")
    assert engine.restarts == 0


def test_hanging_engine_is_restarted_once_for_all_tests_that_ran() -> None:
    engine = FakeEngine(start=10, is_hanging=True)
    hangs = EngineHangs(engine)
    hangs.begin("a", 20)
    hangs.begin("b", 30)
    with pytest.warns(UserWarning, match="blocked in getSvcRecords"):
        assert hangs.failed("a")
    assert hangs.failed("b")
    assert engine.restarts == 1
    hangs.begin("c", 200)
    assert not hangs.failed("c")


def test_summary_has_the_waiting_goroutines_only() -> None:
    assert summary_of_dump(DUMP) == (
        "goroutine 7 [semacquire, 2 minutes]: sync.runtime_SemacquireMutex < sync.(*Mutex).lockSlow"
        " < libnetwork.(*network).getSvcRecords"
    )
