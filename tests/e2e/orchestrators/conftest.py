"""A stack that runs plain processes, and its API as a submitter."""

from collections.abc import Iterator

import pytest

from cellrun import Session
from tests.e2e.stack import RunningStack
from tests.e2e.work import session_of


@pytest.fixture(scope="module")
def stack(shared_stack: RunningStack) -> RunningStack:
    return shared_stack


@pytest.fixture(scope="module")
def session(stack: RunningStack) -> Iterator[Session]:
    with session_of(stack) as session:
        yield session
