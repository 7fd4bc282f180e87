"""A grant gives nothing that the giver or the receiver lacks."""

from datetime import timedelta
from functools import partial
from itertools import product
from typing import Any

import pytest

from controlplane.domain.errors import NotPermitted
from controlplane.domain.roles import Access, Role, check_grant, may_revoke

POWERS = {
    "viewer": {"read"},
    "submitter": {"read", "submit"},
    "operator": {"read", "submit", "operate"},
}
DAYS = (1, 90, 365, 366, 3650, 3651)


def is_permitted(giver: str, receiver: str, role: str, days: int, *, is_own: bool) -> bool:
    """Restate the rules by powers: creating a token needs `submit`, one for others `operate`."""
    own = POWERS[giver]
    return (
        "submit" in own
        and (is_own or "operate" in own)
        and POWERS[role] <= own & POWERS[receiver]
        and days <= (3650 if "operate" in own else 365)
    )


@pytest.mark.parametrize("giver", POWERS)
def test_grant_follows_the_powers_of_both_sides(giver: str) -> None:
    for receiver, role, days, is_own in product(POWERS, POWERS, DAYS, (True, False)):
        check = partial(
            check_grant,
            giver=Role(giver),
            receiver=Role(receiver),
            role=Role(role),
            days=days,
            is_own=is_own,
        )
        if is_permitted(giver, receiver, role, days, is_own=is_own):
            assert check() == timedelta(days=days)
        else:
            with pytest.raises(NotPermitted):
                check()


def test_lesser_role_counts() -> None:
    order = [Role.VIEWER, Role.SUBMITTER, Role.OPERATOR]
    for one, other in product(range(3), repeat=2):
        assert order[one].capped(order[other]) is order[min(one, other)]
        assert order[one].includes(order[other]) is (one >= other)


@pytest.mark.parametrize("owner", [1, 2])
@pytest.mark.parametrize("token", [None, {10}, {10, 11}, {12}])
@pytest.mark.parametrize("limit", [None, {10}, {10, 11}])
def test_token_is_revoked_by_its_owner_and_by_managers_of_all_its_projects(
    owner: int, token: set[int] | None, limit: set[int] | None
) -> None:
    """User 1 manages 10 and 11, and submits in 12; `limit`: that of the presented token."""
    access = Access(
        user_id=1,
        limit=Role.MANAGER,
        projects={10: Role.MANAGER, 11: Role.MANAGER, 12: Role.SUBMITTER},
        bound_to=None if limit is None else frozenset(limit),
    )
    within = limit is None or (token is not None and token <= limit)
    manages = token is not None and token <= {10, 11}
    expected = within and (owner == 1 or manages)
    assert may_revoke(access, owner_id=owner, bound_to=token) is expected


def test_limited_token_needs_a_limit_and_a_role_below_operator() -> None:
    facts: dict[str, Any] = {
        "giver": Role.OPERATOR,
        "receiver": Role.OPERATOR,
        "role": Role.SUBMITTER,
        "days": 1,
        "is_own": True,
    }
    assert check_grant(**facts, is_bound=True, giver_is_bound=True) == timedelta(days=1)
    with pytest.raises(NotPermitted, match="name the projects"):
        check_grant(**facts, giver_is_bound=True)
    with pytest.raises(NotPermitted, match="cannot have the role operator"):
        check_grant(**{**facts, "role": Role.OPERATOR}, is_bound=True)
