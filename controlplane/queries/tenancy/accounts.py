"""Load the credential of a token and its scopes."""

from dataclasses import dataclass
from datetime import datetime

from django.contrib.auth.models import User

from controlplane.models import ApiToken


@dataclass(frozen=True, slots=True)
class Credential:
    """A valid token of an active user."""

    user: User
    scopes: frozenset[str]


def find_credential(digest: str, *, now: datetime) -> Credential | None:
    """Return the credential of the digest; None if unknown, expired or of an inactive user."""
    token = ApiToken.objects.select_related("user").filter(digest=digest).first()
    if token is None or not token.user.is_active:
        return None
    if token.expires_at is not None and token.expires_at <= now:
        return None
    return Credential(token.user, frozenset(token.scopes))
