"""Find the gateway of the engine's bridge, at which containers of any network reach their host.

A cell with a loopback address publishes its ports only locally, and in a container the loopback
address is the container itself. Gang members on two such cells connect through the gateway.
"""

import ipaddress
import socket
import threading
from typing import Any

from docker.errors import NotFound

BRIDGE = "bridge"


class Gateway:
    """The gateway's address, fetched once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._found: str | None = None

    def address(self, api: Any) -> str:
        """Return the address; "": the engine has no such bridge, or it is not on this machine."""
        with self._lock:
            if self._found is None:
                self._found = _find(api)
            return self._found


def is_loopback(address: str) -> bool:
    """Return whether `address` is a loopback address."""
    return address == "::1" or address.startswith("127.")


def _find(api: Any) -> str:
    try:
        ipam = api.inspect_network(BRIDGE).get("IPAM") or {}
    except NotFound:  # Podman has no network of this name
        return ""
    for config in ipam.get("Config") or ():
        gateway = str(config.get("Gateway") or _first_host(str(config.get("Subnet") or "")))
        if gateway and _is_local(gateway):
            return gateway
    return ""


def _first_host(subnet: str) -> str:
    """Return the gateway of a new bridge, which the API lists only after a restart."""
    try:
        return str(next(ipaddress.ip_network(subnet).hosts()))
    except (ValueError, StopIteration):
        return ""


def _is_local(address: str) -> bool:
    """Return whether this machine can listen at `address`; not so with a rootless engine."""
    try:
        version = ipaddress.ip_address(address).version
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except (OSError, ValueError):
        return False
    return True
