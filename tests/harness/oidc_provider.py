"""A small OpenID provider on loopback, strict towards its client and hostile on request.

It signs with RS256 by `cryptography`, without the library that the product verifies with.
"""

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

CLIENT_ID, CLIENT_SECRET = "cellrun-web", "client-secret-for-tests"
LIFE_SECONDS = 300

Claims = dict[str, Any]


def encode(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def compact(value: Claims) -> str:
    return encode(json.dumps(value).encode())


def new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


KEY, OTHER_KEY = new_key(), new_key()


def sign(claims: Claims, key: rsa.RSAPrivateKey | None = None) -> str:
    """Return an id_token."""
    text = f"{compact({'alg': 'RS256', 'kid': 'key-1', 'typ': 'JWT'})}.{compact(claims)}"
    return f"{text}.{encode((key or KEY).sign(text.encode(), padding.PKCS1v15(), SHA256()))}"


@dataclass
class Grant:
    """An authorization that was not used yet."""

    nonce: str
    challenge: str
    redirect_uri: str


@dataclass
class Provider:
    """The provider, and the user that is logged in to it."""

    issuer: str
    redirect_uri: str
    user: Claims = field(default_factory=lambda: {"sub": "s-1", "preferred_username": "user-7"})
    userinfo: Claims | None = None
    """The response of the endpoint; None: the same as in the token."""

    change_token: Callable[[Claims], Claims] = field(default=lambda claims: claims)
    sign: Callable[[Claims], str | None] = field(default=sign)
    change_configuration: Callable[[Claims], Claims] = field(default=lambda found: found)
    grants: dict[str, Grant] = field(default_factory=dict)
    access_tokens: set[str] = field(default_factory=set)
    refusals: list[str] = field(default_factory=list)

    def configuration(self) -> Claims:
        return self.change_configuration(
            {
                "issuer": self.issuer,
                "authorization_endpoint": f"{self.issuer}/authorize",
                "token_endpoint": f"{self.issuer}/token",
                "userinfo_endpoint": f"{self.issuer}/userinfo",
                "jwks_uri": f"{self.issuer}/jwks",
                "response_types_supported": ["code"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["RS256"],
            }
        )

    def keys(self) -> Claims:
        numbers = KEY.public_key().public_numbers()
        parts = {
            name: encode(value.to_bytes((value.bit_length() + 7) // 8, "big"))
            for name, value in (("n", numbers.n), ("e", numbers.e))
        }
        return {"keys": [{"kty": "RSA", "kid": "key-1", "alg": "RS256", "use": "sig", **parts}]}

    def authorize(self, query: dict[str, str]) -> str:
        """Return the address to which the browser returns. Raise ValueError."""
        require(query.get("client_id") == CLIENT_ID, "client_id")
        require(query.get("redirect_uri") == self.redirect_uri, "redirect_uri")
        require(query.get("response_type") == "code", "response_type")
        require("openid" in query.get("scope", "").split(), "scope")
        require(query.get("code_challenge_method") == "S256", "code_challenge_method")
        require(all(query.get(name) for name in ("state", "nonce", "code_challenge")), "missing")
        code = secrets.token_urlsafe(16)
        self.grants[code] = Grant(query["nonce"], query["code_challenge"], self.redirect_uri)
        return f"{self.redirect_uri}?{urlencode({'code': code, 'state': query['state']})}"

    def exchange(self, form: dict[str, str], authorization: str) -> Claims:
        """Return the tokens for a code. Raise ValueError."""
        login = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
        require(authorization == f"Basic {login}", "invalid_client")
        require(form.get("grant_type") == "authorization_code", "unsupported_grant_type")
        grant = self.grants.pop(form.get("code", ""), None)
        require(grant is not None, "invalid_grant")
        assert grant is not None
        require(form.get("redirect_uri") == grant.redirect_uri, "invalid_grant")
        digest = hashlib.sha256(form.get("code_verifier", "").encode()).digest()
        require(encode(digest) == grant.challenge, "invalid_grant")
        now = int(time.time())
        token = self.change_token(
            {
                "iss": self.issuer,
                "aud": CLIENT_ID,
                "iat": now,
                "exp": now + LIFE_SECONDS,
                "nonce": grant.nonce,
                **self.user,
            }
        )
        access = secrets.token_urlsafe(16)
        self.access_tokens.add(access)
        answer = {"access_token": access, "token_type": "Bearer", "expires_in": LIFE_SECONDS}
        signed = self.sign(token)
        return answer if signed is None else {**answer, "id_token": signed}

    def describe_user(self, authorization: str) -> Claims:
        require(authorization.removeprefix("Bearer ") in self.access_tokens, "invalid_token")
        return self.user if self.userinfo is None else self.userinfo


def require(condition: bool, error: str) -> None:
    if not condition:
        raise ValueError(error)


def handler_of(provider: Callable[[], Provider]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            found, authorization = provider(), self.headers.get("Authorization", "")
            routes: dict[str, Callable[[], Claims]] = {
                "/.well-known/openid-configuration": found.configuration,
                "/jwks": found.keys,
                "/userinfo": lambda: found.describe_user(authorization),
            }
            if parts.path == "/authorize":
                self.answer(lambda: {"Location": found.authorize(query)}, status=302)
            else:
                self.answer(routes[parts.path])

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            form = {name: values[0] for name, values in parse_qs(body).items()}
            authorization = self.headers.get("Authorization", "")
            self.answer(lambda: provider().exchange(form, authorization))

        def answer(self, make: Callable[[], Claims], status: int = 200) -> None:
            try:
                content = make()
            except ValueError as refusal:
                provider().refusals.append(str(refusal))
                status, content = 400, {"error": str(refusal)}
            body = json.dumps(content).encode()
            self.send_response(status)
            if status == 302:
                self.send_header("Location", content["Location"])
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    return Handler


@contextmanager
def serve_provider(redirect_uri: str) -> Iterator[Provider]:
    """Run a provider that returns browsers to `redirect_uri` only."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(lambda: provider))
    provider = Provider(f"http://127.0.0.1:{server.server_port}", redirect_uri)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
