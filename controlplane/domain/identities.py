"""Users of an OpenID provider: the names and groups that their claims give them."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MAX_SUBJECT = 255
"""Characters of a subject (OpenID Connect Core 1.0, section 2)."""

MAX_ISSUER = 400
MAX_NAME = 150
"""Characters of the name of a user in Django."""


class InvalidClaims(Exception):
    """The claims do not identify a user."""


@dataclass(frozen=True, slots=True)
class ProviderUser:
    """A user as the provider describes it. Only issuer and subject identify the user."""

    issuer: str
    subject: str
    name: str
    groups: frozenset[str]


@dataclass(frozen=True, slots=True)
class GroupRules:
    """The effects of groups of the provider.

    `groups`: a group of the provider -> a group of Cellrun. `operators`: the groups of the provider
    whose users are operators; if there are none, logins change no operators.
    """

    groups: tuple[tuple[str, str], ...] = ()
    operators: frozenset[str] = frozenset()

    def managed(self) -> frozenset[str]:
        """Return the groups of Cellrun that logins change."""
        return frozenset(group for _, group in self.groups)

    def wanted(self, identity: ProviderUser) -> frozenset[str]:
        """Return the groups of Cellrun to which the user belongs."""
        return frozenset(group for claim, group in self.groups if claim in identity.groups)

    def makes_operator(self, identity: ProviderUser) -> bool | None:
        """Return whether the user is an operator; None if logins do not decide it."""
        return bool(self.operators & identity.groups) if self.operators else None


def read_identity(issuer: str, claims: Mapping[str, object], groups_claim: str) -> ProviderUser:
    """Return the user that verified claims describe. Raise InvalidClaims."""
    subject = claims.get("sub")
    if not isinstance(subject, str) or not 0 < len(subject) <= MAX_SUBJECT or "\0" in subject:
        raise InvalidClaims(f"sub: a text of 1 to {MAX_SUBJECT} characters is needed")
    if len(issuer) > MAX_ISSUER:
        raise InvalidClaims(f"iss: at most {MAX_ISSUER} characters are possible")
    return ProviderUser(
        issuer=issuer,
        subject=subject,
        name=_read_name(claims.get("preferred_username"), subject),
        groups=_read_groups(claims.get(groups_claim), groups_claim),
    )


def unique_name(identity: ProviderUser) -> str:
    """Return a name for a user whose own name is taken."""
    digest = hashlib.sha256(f"{identity.issuer}\n{identity.subject}".encode()).hexdigest()[:8]
    return f"{identity.name[: MAX_NAME - 9]}-{digest}"


def _read_name(value: object, subject: str) -> str:
    """Return the preferred name, or the subject, with the characters that a name may have.

    These are ASCII characters, so that no name looks like another one.
    """
    name = value if isinstance(value, str) and value.strip() else subject
    return re.sub(r"[^A-Za-z0-9@.+_-]+", "-", name).strip("-")[:MAX_NAME] or "user"


def _read_groups(value: object, claim: str) -> frozenset[str]:
    if value is None:
        return frozenset()
    if isinstance(value, str):
        return frozenset({value})
    if isinstance(value, Iterable) and not isinstance(value, Mapping):
        groups = list(value)
        if all(isinstance(group, str) for group in groups):
            return frozenset(groups)
    raise InvalidClaims(f"{claim}: a list of texts is needed")
