"""Roles of API tokens, and the grants that each role permits."""

from datetime import timedelta
from enum import StrEnum

from controlplane.domain.errors import NotPermitted

DEFAULT_DAYS = 90
MAX_DAYS = 365
# An operator may grant more than MAX_DAYS, up to this.
MAX_OPERATOR_DAYS = 3650


class Role(StrEnum):
    """What a token permits; each role includes the ones before it."""

    VIEWER = "viewer"
    SUBMITTER = "submitter"
    OPERATOR = "operator"

    def includes(self, other: "Role") -> bool:
        """Return whether this role permits everything that `other` permits."""
        return _RANKS[self] >= _RANKS[other]

    def capped(self, other: "Role") -> "Role":
        """Return the lesser of the two roles."""
        return self if other.includes(self) else other


_RANKS = {role: rank for rank, role in enumerate(Role)}


def check_grant(*, giver: Role, receiver: Role, role: Role, days: int, is_own: bool) -> timedelta:
    """Return the life of a token with `role` for a user with the role `receiver`.

    `giver`: the role of the token that requests it. `is_own`: the token is for the caller. Raise
    NotPermitted.
    """
    if not giver.includes(Role.SUBMITTER):
        raise NotPermitted("a token with the role viewer cannot create tokens")
    if not is_own and giver is not Role.OPERATOR:
        raise NotPermitted("only operators may create tokens for other users")
    if not giver.includes(role):
        raise NotPermitted(f"a token with the role {giver} cannot create one with the role {role}")
    if not receiver.includes(role):
        raise NotPermitted(f"the user has the role {receiver}: the token cannot have {role}")
    limit = MAX_OPERATOR_DAYS if giver is Role.OPERATOR else MAX_DAYS
    if days > limit:
        raise NotPermitted(f"expires_in_days: at most {limit} days are permitted")
    return timedelta(days=days)
