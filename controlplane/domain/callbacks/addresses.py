"""Receivers of callbacks: their addresses, by the policy that also holds for inputs of tasks."""

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from controlplane.contract.addresses import Address, Network, refuse_address
from controlplane.spec.hosts import read_address

_PORTS = {"http": 80, "https": 443}


def refuse_url(url: str, allowed: Sequence[Network]) -> str | None:
    """Return why no callback is sent to `url`, or None. A host name is not resolved."""
    host = _host_of(url)
    if host == "localhost" or host.endswith(".localhost"):
        return refuse_address(ipaddress.ip_address("127.0.0.1"), allowed)
    address = address_of(url)
    return None if address is None else refuse_address(address, allowed)


def address_of(url: str) -> Address | None:
    """Return the host of `url` as an IP address, or None if it is a name."""
    return read_address(_host_of(url))


def _host_of(url: str) -> str:
    return (urlsplit(url).hostname or "").rstrip(".").lower()


def receiver_of(url: str) -> str:
    """Return the receiver of a valid `url` as normalized host:port, or "" without a host.

    Tries are limited per receiver, so different spellings must result in the same receiver.
    """
    parts, host = urlsplit(url), _host_of(url)
    if not host:
        return ""
    address = read_address(host)
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    if address is not None:
        host = f"[{address}]" if address.version == 6 else str(address)
    return f"{host}:{parts.port or _PORTS[parts.scheme]}"
