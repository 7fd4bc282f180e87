"""Subnets for gang networks when the engine's own address pools are exhausted."""

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from docker.errors import APIError
from docker.types import IPAMConfig, IPAMPool

Network = ipaddress.IPv4Network

# 256 networks of 1,021 members each, the maximum of a Linux bridge.
RANGE = Network("10.208.0.0/14")
_PREFIX = 22
_ROUTES = Path("/proc/net/route")


def is_exhausted(error: APIError) -> bool:
    """Return whether the engine has no address pool left; the texts of its versions differ."""
    return "address pool" in str(error)


def is_taken(error: APIError) -> bool:
    """Return whether another network has taken the subnet meanwhile."""
    return "overlap" in str(error)


def free_subnets(networks: Iterable[Mapping[str, Any]]) -> Iterator[Network]:
    """Yield the subnets of RANGE that neither a network of the engine nor a route uses."""
    used = [*_subnets_of(networks), *_routes()]
    for subnet in RANGE.subnets(new_prefix=_PREFIX):
        if not any(subnet.overlaps(one) for one in used):
            yield subnet


def ipam_of(subnet: Network) -> Any:
    """Return the engine's configuration of a network with this subnet."""
    return IPAMConfig(pool_configs=[IPAMPool(subnet=str(subnet))])


def _subnets_of(networks: Iterable[Mapping[str, Any]]) -> Iterator[Network]:
    for network in networks:
        for config in (network.get("IPAM") or {}).get("Config") or ():
            try:
                yield Network(config.get("Subnet") or "", strict=False)
            except ValueError:  # IPv6, or none
                continue


def _routes() -> Iterator[Network]:
    """Yield the subnets that the routes of this machine cover, without its default route."""
    try:
        lines = _ROUTES.read_text().splitlines()[1:]
    except OSError:
        return
    for line in lines:
        fields = line.split()
        address, mask = (int.from_bytes(bytes.fromhex(fields[n]), "little") for n in (1, 7))
        if mask:
            yield Network((address & mask, mask.bit_count()))
