"""What all integration tests share."""

from collections.abc import Iterator

import pytest

from controlplane import clock


@pytest.fixture(autouse=True)
def _read_clock_each_time() -> Iterator[None]:
    """Read PostgreSQL's clock each time, so that counts of statements do not depend on chance."""
    clock.use(clock.DatabaseClock(read_seconds=0.0))
    yield
    clock.use(None)


@pytest.fixture(autouse=True)
def _reach_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no slice of work end early: a busy machine must not change the result of a test.

    A test about the end of a slice sets its length to 0.
    """
    monkeypatch.setattr(clock, "monotonic", lambda: 0.0)
