"""One stack with one cell for all tests of this package; what they change, they change back."""

from collections.abc import Iterator

import pytest

from cellrun import Session
from tests.e2e.engine import remove_containers
from tests.e2e.stack import RunningStack, open_folder, remnants
from tests.e2e.work import session_of


@pytest.fixture(scope="package")
def stack() -> Iterator[RunningStack]:
    with open_folder() as folder:
        with RunningStack(folder / "home", cells=1) as running:
            with session_of(running, operator=True) as operator:
                for kind in ("user", "project"):
                    operator.put_quota("default", kind, {"highest_band": "production"})
            yield running
        remove_containers(running.installation)
        assert remnants(running.home) == []


@pytest.fixture
def session(stack: RunningStack) -> Iterator[Session]:
    with session_of(stack) as session:
        yield session


@pytest.fixture
def operator(stack: RunningStack) -> Iterator[Session]:
    with session_of(stack, operator=True) as session:
        yield session
