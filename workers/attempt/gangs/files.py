"""The files in which a gang member finds the other members and their addresses.

Two members on one cell with `network: gang` share a private network: the engine resolves their
names, with the programs' own ports. Any other peer is reached at the ports that its cell publishes.
This module does not access containers.
"""

import ipaddress
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controlplane.contract.messages.gang import Gang, GangMember
from controlplane.contract.states import TaskState
from workers.attempt.environment import inner_ports

GANG_FOLDER = "/run/cellrun/gang"
SSH_FOLDER = "/run/cellrun/ssh"
HOSTS_FILE = "/etc/hosts"
KEY_FILE = "id_ed25519"
SSH_PORT = "ssh"  # the name of the port of an SSH server

Resolve = Callable[[str], str | None]
"""Return the IP address of a host name; None: it cannot be resolved."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A member as reached by another member, or by itself.

    `host`: None while it is not reachable, for the reason `why`. `is_private`: reached by its name
    in a common network; otherwise `ports` are those of its cell.
    """

    member: GangMember
    is_here: bool = False
    is_private: bool = False
    host: str | None = None
    ports: Mapping[str, int] = field(default_factory=dict)
    why: str = ""


def list_peers(gang: Gang, me: GangMember) -> list[Peer]:
    """Return all members as `me` reaches them, by rank."""
    return [_peer_of(me, member) for member in gang.members]


def _peer_of(me: GangMember, other: GangMember) -> Peer:
    is_here = me.cell is not None and me.cell == other.cell
    if other.rank == me.rank:
        host = me.name if me.group.network == "gang" and _is_contained(me) else "127.0.0.1"
        ports = _inner_ports(other)
        return Peer(other, is_here=True, is_private=True, host=host, ports=ports)
    if other.state is not TaskState.RUNNING:
        return Peer(other, is_here, why="it does not run")
    if is_here and all(_is_contained(m) and m.group.network == "gang" for m in (me, other)):
        return Peer(other, True, True, other.name, _inner_ports(other))
    if _is_contained(me) and me.group.network == "none":
        return Peer(other, is_here, why="network: none reaches no peer")
    published = _published(other)
    if not published:
        return Peer(other, is_here, why="it publishes no ports")
    host = next(host for host, _ in published.values())
    if _is_contained(me) and is_loopback(host):
        why = f"its cell {other.cell} is reached at {host}, which in a container is itself"
        return Peer(other, is_here, why=why)
    ports = {name: port for name, (_, port) in published.items()}
    return Peer(other, is_here, host=host, ports=ports)


def _is_contained(member: GangMember) -> bool:
    """Return whether it has a network of its own; processes and runners use their host's."""
    return member.group.task_type == "container"


def _inner_ports(member: GangMember) -> dict[str, int]:
    if _is_contained(member):
        return inner_ports(member.group.ports)
    return {name: port for name, (_, port) in _published(member).items()}


def _published(member: GangMember) -> dict[str, tuple[str, int]]:
    """Return the published addresses of its ports, in the order of its group."""
    addresses = member.addresses
    names = [name for name in member.group.ports if name in addresses]
    return {name: split_address(addresses[name]) for name in names}


def split_address(text: str) -> tuple[str, int]:
    """Return host and port of "host:port" or "[address]:port"; port 0 if it has none."""
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port) if port.isdecimal() else 0


def is_loopback(host: str) -> bool:
    """Return whether `host` means the local machine or container."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def hosts_text(me: GangMember, peers: Sequence[Peer], resolve: Resolve) -> str:
    """Return the hosts file of `me`, without peers in its private network, which DNS resolves."""
    lines = ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback"]
    if me.group.network != "gang":
        lines.append(f"127.0.0.1\t{me.name}")
    for peer in peers:
        if peer.is_private:
            continue
        name, why = peer.member.name, peer.why
        address = None if peer.host is None else resolve(peer.host)
        if peer.host is not None and address is None:
            why = f"{peer.host} has no address that its cell can find"
        lines.append(f"# {name}: {why}" if address is None else f"{address}\t{name}")
    return "\n".join(lines) + "\n"


def peers_json(gang: Gang, me: GangMember, peers: Sequence[Peer]) -> str:
    """Return `peers.json`: one member per line."""
    head = {"size": len(peers), "rank": me.rank, "name": me.name, "ready": gang.is_ready}
    members = ",\n  ".join(json.dumps(_document(peer)) for peer in peers)
    return f'{json.dumps(head)[:-1]}, "members": [\n  {members}\n]}}\n'


def _document(peer: Peer) -> dict[str, Any]:
    member = peer.member
    return {
        "rank": member.rank,
        "name": member.name,
        "group": member.group.name,
        "index": member.index,
        "state": member.state.name,
        "attempt": member.number,
        "cell": member.cell,
        "is_here": peer.is_here,
        "host": peer.host,
        "ports": dict(peer.ports),
        "why": peer.why or None,
    }


def peers_table(peers: Sequence[Peer]) -> str:
    """Return `peers`, for shells: rank, name, state, host, and each port as name=port; - is
    unknown.
    """
    lines = []
    for peer in peers:
        member = peer.member
        ports = [f"{name}={port}" for name, port in peer.ports.items()]
        lines.append(
            " ".join([str(member.rank), member.name, member.state.name, peer.host or "-", *ports])
        )
    return "\n".join(lines) + "\n"


def ssh_config(peers: Sequence[Peer], key_path: str) -> str:
    """Return a configuration for `ssh -F` with each peer that accepts logins, by its name."""
    lines = ["# Written by the cell, again whenever a peer moves: ssh -F THIS_FILE NAME"]
    for peer in peers:
        port = peer.ports.get(SSH_PORT)
        if peer.host is None or (port is None and not peer.is_private):
            continue
        member = peer.member
        lines += [f"Host {member.name}", f"  HostName {peer.host}"]
        if port is not None:
            lines.append(f"  Port {port}")
        # Its next attempt may run on another machine, with another host key.
        lines.append(f"  HostKeyAlias {member.name}.attempt-{member.number}")
    lines += [
        "Host *",
        f"  IdentityFile {key_path}",
        "  IdentitiesOnly yes",
        "  StrictHostKeyChecking accept-new",
    ]
    return "\n".join(lines) + "\n"
