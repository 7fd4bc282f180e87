"""The scenarios' stage: the loop on PostgreSQL, with a clock that each scenario moves itself."""

from collections.abc import Iterator

import pytest

from controlplane import clock
from tests.integration.loop.conftest import Loop, loop
from tests.scenarios.stage import Stage

__all__ = ["loop", "stage"]


@pytest.fixture
def stage(loop: Loop) -> Iterator[Stage]:
    """An empty installation with one user, at a moment that only the scenario moves on."""
    found = Stage(loop.owner, loop.wire, loop.inbox)
    clock.use(found.now)
    yield found
    clock.use(None)
