"""The OpenID provider: the authorization code flow with PKCE, state and nonce, by Authlib.

Each login reads the provider's configuration and keys again, so that changes there need no restart.
"""

from typing import Any, cast

from authlib.common.errors import AuthlibBaseError
from authlib.integrations.django_client import OAuth
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from joserfc.errors import JoseError
from requests import RequestException

from controlplane.domain.identities import InvalidClaims, ProviderUser, read_identity

DISCOVERY = "/.well-known/openid-configuration"

ALGORITHMS = [
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
]
"""Accepted signatures: only asymmetric ones, whatever the provider announces."""

TIMEOUT_SECONDS = 5.0
"""Of each request to the provider: a login needs four, and a thread of web waits for them."""

CLOCK_SKEW_SECONDS = 30
"""By how much the clocks of web and of the provider may differ."""


class ProviderFault(Exception):
    """The provider cannot be reached, refuses the login, or sends an invalid response."""


_FAULTS = (AuthlibBaseError, JoseError, RequestException, InvalidClaims, ValueError, TypeError)
"""Of the library, and of responses with another structure than expected."""


def begin_login(request: HttpRequest, *, callback: str) -> HttpResponse:
    """Return a redirect to the provider, which returns the browser to `callback`.

    Raise ProviderFault.
    """
    try:
        return cast(HttpResponse, _client().authorize_redirect(request, callback))
    except (*_FAULTS, KeyError, RuntimeError) as fault:
        raise ProviderFault(_describe(fault)) from fault


def finish_login(request: HttpRequest) -> ProviderUser:
    """Return the user that the provider's response names. Raise ProviderFault."""
    try:
        client = _client()
        issuer = str(client.server_metadata["issuer"])
        token = client.authorize_access_token(
            request,
            claims_options={
                "iss": {"essential": True, "value": issuer},
                "aud": {"essential": True, "value": client.client_id},
            },
            leeway=CLOCK_SKEW_SECONDS,
        )
        # Without an id_token the library returns a token and has verified nothing.
        if "userinfo" not in token:
            raise ProviderFault("the response has no id_token")
        claims = {**_userinfo(client, token), **token["userinfo"]}
        return read_identity(issuer, claims, settings.CELLRUN.oidc_groups_claim)
    except (*_FAULTS, KeyError, RuntimeError) as fault:
        raise ProviderFault(_describe(fault)) from fault


def _client() -> Any:
    """Return the library's client with the configuration that the provider publishes."""
    wanted = settings.CELLRUN
    client = OAuth().register(
        "cellrun",
        client_id=wanted.oidc_client_id,
        client_secret=wanted.oidc_client_secret,
        server_metadata_url=wanted.oidc_issuer.rstrip("/") + DISCOVERY,
        client_kwargs={
            "scope": wanted.oidc_scopes,
            "code_challenge_method": "S256",
            "default_timeout": TIMEOUT_SECONDS,
        },
    )
    issuer = client.load_server_metadata().get("issuer")
    if str(issuer).rstrip("/") != wanted.oidc_issuer.rstrip("/"):
        raise ProviderFault(f"the provider names another issuer: {str(issuer)[:200]}")
    client.server_metadata["id_token_signing_alg_values_supported"] = ALGORITHMS
    return client


def _userinfo(client: Any, token: Any) -> dict[str, Any]:
    """Return the claims of the provider's endpoint, which may have groups that the token has not.

    Raise ProviderFault if they describe another user than the token.
    """
    if "userinfo_endpoint" not in client.server_metadata:
        return {}
    found = client.userinfo(token=token)
    if found.get("sub") != token["userinfo"]["sub"]:
        raise ProviderFault("userinfo: the claims of another user")
    return dict(found)


def _describe(fault: Exception) -> str:
    return f"{type(fault).__name__}: {fault}"[:300]
