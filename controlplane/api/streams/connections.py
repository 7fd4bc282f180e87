"""What streams in front of Django have in common: their tokens, headers and disconnection."""

from django.db import connection
from rest_framework.exceptions import AuthenticationFailed

from controlplane.api.base import BearerAuthentication
from controlplane.api.body_limit import Receive, Scope
from controlplane.queries.tenancy.accounts import Credential

# A revoked or expired token, or a lost role on the project, ends a stream within this time.
TOKEN_SECONDS = 5.0

STREAM_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-accel-buffering", b"no"),
)
"""Headers that keep proxies and browsers from storing or delaying a stream."""


def read_token(scope: Scope) -> bytes | None:
    """Return the bearer token of a request; None without one."""
    authorization = dict(scope["headers"]).get(b"authorization", b"")
    scheme, _, token = authorization.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else None


def check_token(token: bytes | None) -> Credential:
    """Return the credential of a token. Raise AuthenticationFailed."""
    if token is None:
        raise AuthenticationFailed
    _, credential = BearerAuthentication().check(token)
    return credential


def close_database() -> None:
    """Return the database connection of this thread, which the stream will not use again soon."""
    connection.close()


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
