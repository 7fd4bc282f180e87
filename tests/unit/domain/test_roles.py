"""A grant gives nothing that the giver or the receiver lacks."""

from datetime import timedelta
from functools import partial
from itertools import product

import pytest

from controlplane.domain.errors import NotPermitted
from controlplane.domain.roles import Role, check_grant

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
