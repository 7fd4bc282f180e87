"""Find the address of a caller, as far as it is known."""

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from django.http import HttpRequest
from rest_framework.request import Request

# A request with one of these came through a proxy.
_PROXY_HEADERS = ("Forwarded", "Via", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP")


def find_address(request: HttpRequest | Request) -> IPv4Address | IPv6Address | None:
    """Return the address of the caller; None if it is unknown.

    uvicorn replaces the address of a trusted proxy by the one in X-Forwarded-For. Without that
    header the address is the proxy's, which must not count as the caller's.
    """
    headers = request.headers
    if "X-Forwarded-For" not in headers and any(name in headers for name in _PROXY_HEADERS):
        return None
    try:
        found = ip_address(request.META.get("REMOTE_ADDR") or "")
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def find_network(request: HttpRequest | Request) -> str:
    """Return what counts as one caller: an IPv4 address, or a network of 64 bits of IPv6.

    All callers with unknown addresses count as one.
    """
    address = find_address(request)
    if isinstance(address, IPv6Address):
        return str(ip_network((address, 64), strict=False))
    return str(address) if address else "unknown"
