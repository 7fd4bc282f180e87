"""Address policy of callbacks: private and internal addresses are rejected.

The addresses of a host name are checked at each try, so that a changed DNS record cannot bypass the
policy.
"""

import ipaddress
from collections.abc import Sequence
from urllib.parse import urlsplit

from controlplane.spec.hosts import Address, read_address

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_CARRIER = ipaddress.ip_network("100.64.0.0/10")  # shared address space (RFC 6598)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# Networks that some versions of `ipaddress` consider global: local translation (RFC 8215),
# documentation (RFC 9637), and protocol assignments (RFC 6890).
_NOT_GLOBAL = tuple(
    ipaddress.ip_network(text) for text in ("64:ff9b:1::/48", "3fff::/20", "192.0.0.0/24")
)
# Azure's WireServer, which serves settings and certificates of the virtual machine, has a public
# address. Such services of other clouds have link-local, shared or private addresses.
_OF_CLOUDS = (ipaddress.ip_address("168.63.129.16"),)
_COMPATIBLE = ipaddress.ip_network("::/96")  # IPv4-compatible, long deprecated (RFC 4291)
_PRIVATE = tuple(
    ipaddress.ip_network(text)
    for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10")
)
_PORTS = {"http": 80, "https": 443}


def refuse_address(address: Address, allowed: Sequence[Network]) -> str | None:
    """Return why no callback is sent to `address`, or None if it is permitted.

    Networks in `allowed` are always permitted. The text omits the address, because it would reveal
    internal DNS records to the submitter.
    """
    if any(address in network for network in allowed if network.version == address.version):
        return None
    inner = _embedded_ipv4(address)
    if inner is not None:
        return refuse_address(inner, allowed)
    kind = _kind_of(address)
    return None if kind is None else f"its address is not public but {kind}"


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


def _embedded_ipv4(address: Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that is embedded in an IPv6 address."""
    if isinstance(address, ipaddress.IPv4Address):
        return None
    if address.ipv4_mapped is not None or address.sixtofour is not None:
        return address.ipv4_mapped or address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    is_compatible = address in _COMPATIBLE and int(address) > 1
    if is_compatible or address in _NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return None


def _kind_of(address: Address) -> str | None:
    """Return the kind of a non-public `address`, or None if it is public."""
    kinds = {
        "unspecified": address.is_unspecified,
        "loopback": address.is_loopback,
        "link-local": address.is_link_local,
        "multicast": address.is_multicast,
        "shared (carrier-grade NAT)": address in _CARRIER,
        "private": any(address in network for network in _PRIVATE),
        "a cloud's own": address in _OF_CLOUDS,
        "reserved": address.is_reserved
        or address.is_private
        or not address.is_global
        or any(address in network for network in _NOT_GLOBAL),
    }
    return next((kind for kind, holds in kinds.items() if holds), None)
