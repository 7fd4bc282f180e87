"""Address policy for URLs of submitters: callbacks of the control plane, inputs that cells fetch.

Only public addresses are permitted, and the networks that an operator allows. Callers check all
addresses of a host name before each connection, so that neither a redirect nor a changed DNS record
can bypass the policy.
"""

import ipaddress
from collections.abc import Sequence

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Services that give the machine's own credentials to each of its processes. Not all of them have
# link-local addresses, and a network that is allowed for its other hosts may contain them.
_METADATA = frozenset(
    ipaddress.ip_address(text)
    for text in (
        "169.254.169.254",  # most clouds
        "169.254.170.2",  # AWS, containers
        "169.254.170.23",  # AWS, pods
        "fd00:ec2::23",
        "fd00:ec2::254",
        "fd20:ce::254",  # Google Cloud
        "192.0.0.192",  # Oracle Cloud
        "fd00:c1::a9fe:a9fe",
        "fe80::a9fe:a9fe",  # OpenStack
        "100.100.100.200",  # Alibaba Cloud
        "168.63.129.16",  # Azure: settings and certificates of the virtual machine
    )
)
_CARRIER = ipaddress.ip_network("100.64.0.0/10")  # shared address space (RFC 6598)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
# Networks that some versions of `ipaddress` consider global: local translation (RFC 8215),
# documentation (RFC 9637), and protocol assignments (RFC 6890).
_NOT_GLOBAL = tuple(
    ipaddress.ip_network(text) for text in ("64:ff9b:1::/48", "3fff::/20", "192.0.0.0/24")
)
_COMPATIBLE = ipaddress.ip_network("::/96")  # IPv4-compatible, long deprecated (RFC 4291)
_PRIVATE = tuple(
    ipaddress.ip_network(text)
    for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10")
)


def refuse_address(address: Address, allowed: Sequence[Network]) -> str | None:
    """Return why no URL of a submitter may lead to `address`, or None if it is permitted.

    Networks in `allowed` are permitted, except for the metadata services of clouds. The text omits
    the address, because it would reveal internal DNS records to the submitter.
    """
    inner = _embedded_ipv4(address)
    if address in _METADATA or inner in _METADATA:
        return "its address is not public but that of a cloud's metadata service"
    if any(address in network for network in allowed if network.version == address.version):
        return None
    if inner is not None:
        return refuse_address(inner, allowed)
    kind = _kind_of(address)
    return None if kind is None else f"its address is not public but {kind}"


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
        "reserved": address.is_reserved
        or address.is_private
        or not address.is_global
        or any(address in network for network in _NOT_GLOBAL),
    }
    return next((kind for kind, holds in kinds.items() if holds), None)
