"""POST to untrusted receivers: bounded, without redirects, and never to internal networks."""

import asyncio
import os
import socket
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_address
from types import TracebackType
from typing import Any

import aiohttp
import structlog
import yarl
from aiohttp.abc import AbstractResolver, ResolveResult

from controlplane.contract.addresses import Network, refuse_address
from controlplane.domain.callbacks.addresses import address_of, refuse_url
from controlplane.outbox.callbacks.resolver import LookupCaller, Resolver

log = structlog.get_logger(__name__)

# Read part of the body: a receiver that sends its response in two parts needs the connection.
_BODY_BYTES = 4_096
_BODY_SECONDS = 1.0
# The limit of a whole response: a receiver could send 1xx responses without end.
_RESPONSE_BYTES = 262_144
_TOO_LONG = f"the response has more than {_RESPONSE_BYTES // 1024} KiB"
# An owner whose lookups all hang leaves most threads to the others.
_OWNERS_PART = 8

# The caller of the current try, which the connector does not pass to the resolver.
_CALLER: ContextVar[LookupCaller] = ContextVar("caller")


class AddressRefused(OSError):
    """The receiver's address is not allowed."""


@dataclass(frozen=True, slots=True)
class CallbackResponse:
    """The result of a request. `error`: one line; empty if the status is from 200 to 299.

    `is_begun`: False if too many lookups were in progress, so that the name was not resolved.
    """

    status: int | None
    error: str = ""
    is_begun: bool = True


class CallbackClient:
    """Posts concurrently within one event loop. Use it as an asynchronous context."""

    def __init__(self, *, allowed: Sequence[Network], seconds: float, at_once: int) -> None:
        self._allowed, self._seconds = tuple(allowed), seconds
        self._resolver = _Resolver(self._allowed, at_once)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "CallbackClient":
        """Open no connection yet."""
        connector = aiohttp.TCPConnector(
            resolver=self._resolver,
            socket_factory=self._open_socket,
            use_dns_cache=False,
            force_close=True,  # each try resolves the receiver again
            limit=0,  # the number of claims bounds the requests in progress
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=self._seconds),
            response_class=_Response,
            auto_decompress=False,
            trust_env=False,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
        await self._resolver.close()

    async def post(
        self, url: str, *, owner_id: int, headers: Mapping[str, str], body: bytes
    ) -> CallbackResponse:
        """Send one request within the time limit. Raise nothing except cancellation."""
        caller = LookupCaller(owner_id)
        _CALLER.set(caller)
        try:
            why = refuse_url(url, self._allowed)
            if why is not None:
                raise AddressRefused(why)
            return await self._post(url, headers, body)
        except TimeoutError:
            error = f"no response within {self._seconds:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as fault:
            error = _describe(fault)
        if caller.is_queued:
            error = (
                f"the name of the receiver was not resolved within {self._seconds:g} s:"
                " too many lookups are in progress"
            )
        return CallbackResponse(None, error, is_begun=not caller.is_queued)

    async def _post(self, url: str, headers: Mapping[str, str], body: bytes) -> CallbackResponse:
        assert self._session is not None
        where, address = yarl.URL(url, encoded=True), address_of(url)
        if isinstance(address, IPv4Address):
            # Normalize it: libraries reject some spellings, or take them for a name.
            where = where.with_host(str(address))
        request = self._session.post(where, headers=headers, data=body, allow_redirects=False)
        over_at = asyncio.get_running_loop().time() + self._seconds
        async with asyncio.timeout_at(over_at):
            response = await request
        # The status is final, even if reading the body fails or is cancelled by a stop.
        status = response.status
        try:
            with suppress(TimeoutError, asyncio.CancelledError, aiohttp.ClientError, OSError):
                enough_at = min(over_at, asyncio.get_running_loop().time() + _BODY_SECONDS)
                async with asyncio.timeout_at(enough_at):
                    await response.content.read(_BODY_BYTES)
        finally:
            response.close()
        if 200 <= status <= 299:
            return CallbackResponse(status)
        is_redirect = 300 <= status <= 399
        return CallbackResponse(
            status, f"status {status}" + (": redirects are not followed" if is_redirect else "")
        )

    def _open_socket(self, info: Any) -> socket.socket:
        """Check the address of the connection itself, whatever its origin, and open a socket."""
        family, kind, protocol, _, address = info
        _check(address[0], self._allowed)
        return socket.socket(family, kind, protocol)


class _Response(aiohttp.ClientResponse):
    """A response whose size is limited from its first byte, not only from its body on."""

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        """Read up to the final status, with interim responses within the limit."""
        if connection.transport is not None:
            connection.transport.set_protocol(
                _BoundedProtocol(connection.transport, connection.protocol)
            )
        return await super().start(connection)


class _BoundedProtocol(asyncio.Protocol):
    """Passes data to another protocol, and closes the connection at the limit."""

    def __init__(self, transport: asyncio.Transport, inner: asyncio.Protocol) -> None:
        self._transport, self._inner = transport, inner
        self._left = _RESPONSE_BYTES

    def data_received(self, data: bytes) -> None:
        if self._left <= 0:
            return
        self._left -= len(data)
        self._inner.data_received(data)
        if self._left <= 0:
            self._inner.connection_lost(OSError(_TOO_LONG))
            self._transport.abort()

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, fault: Exception | None) -> None:
        if self._left > 0:  # otherwise `data_received` has closed it
            self._inner.connection_lost(fault)


class _Resolver(AbstractResolver):
    """Resolves names by the system's resolver; refuses a name if any of its addresses is."""

    def __init__(self, allowed: Sequence[Network], at_once: int) -> None:
        self._allowed = allowed
        self._lookups = Resolver(at_once=at_once, per_owner=max(1, at_once // _OWNERS_PART))

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return all addresses of `host`. Raise AddressRefused, OSError."""
        found = await self._lookups.find(_CALLER.get(), host, family)
        for *_, address in found:
            _check(address[0], self._allowed)
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=port,
                family=kind,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for kind, _, protocol, _, address in found
        ]

    async def close(self) -> None:
        """Do nothing: lookups in progress are abandoned."""


def _check(text: str, allowed: Sequence[Network]) -> None:
    why = refuse_address(ip_address(text.partition("%")[0]), allowed)
    if why is not None:
        log.info("callback_refused", address=text, why=why)
        raise AddressRefused(why)


def _describe(error: Exception) -> str:
    """Return one line that describes the error, without details of internal networks."""
    if isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error
    match error:
        case AddressRefused():
            return f"refused: {error}"
        case ssl.SSLError() | ssl.CertificateError():
            return f"TLS: {error}"
        case socket.gaierror():
            return f"the name of the receiver was not found: {error.strerror}"
        case aiohttp.ServerDisconnectedError():
            return "the receiver closed the connection without a response"
        case aiohttp.ClientResponseError() | aiohttp.ClientPayloadError():
            return "the response is not HTTP"
    if error.args == (_TOO_LONG,):
        return _TOO_LONG
    if isinstance(error, OSError) and error.errno is not None:
        return f"{type(error).__name__}: {os.strerror(error.errno)}"  # the rest names addresses
    return f"{type(error).__name__}: {error}"
