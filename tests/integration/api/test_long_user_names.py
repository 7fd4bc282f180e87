"""A user whose name is as long as permitted changes work like every other."""

from typing import Any

import pytest

from controlplane.domain.roles import Role
from tests.integration.api.conftest import Caller, make_caller
from tests.integration.api.test_charges import NOOP

pytestmark = pytest.mark.django_db

LONGEST = 150
"""Of the names that Django and the API permit for users and service accounts."""

CHANGES: dict[str, dict[str, Any]] = {
    "hold": {"reason": "test"},
    "move": {"to": "end"},
    "cancel": {"reason": "test"},
}


@pytest.fixture
def longest() -> Caller:
    return make_caller("u" * LONGEST, Role.MANAGER)


@pytest.mark.parametrize("change", CHANGES)
def test_the_history_records_a_change_by_a_user_with_a_long_name(
    longest: Caller, change: str
) -> None:
    job = longest.post("/jobs", NOOP).json["id"]
    assert longest.post(f"/jobs/{job}/{change}", CHANGES[change]).status in (200, 202)


def test_the_history_records_a_release_by_a_user_with_a_long_name(longest: Caller) -> None:
    other = make_caller("other", Role.MANAGER)
    job = longest.post("/jobs", NOOP).json["id"]
    assert other.post(f"/jobs/{job}/hold", {"reason": "test"}).status == 200
    assert longest.post(f"/jobs/{job}/release", {"reason": "test"}).status == 200
