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
