"""Find the address of a caller, as far as it is known."""

from ipaddress import IPv4Address, IPv6Address, ip_address

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
