"""Gang membership as members receive it: ranks, addresses and the gang's key pair.

Cells poll web for it while members run, since addresses are known only once the peers run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from controlplane.contract import fields
from controlplane.contract.fields import MalformedMessage
from controlplane.contract.states import STATE_OF, TaskState

# States of members that may still change their cell.
_OPEN = (TaskState.PENDING, TaskState.ASSIGNED, TaskState.BUILDING)


@dataclass(frozen=True, slots=True)
class GangGroup:
    """The shared fields of members of one group. `network` and `ports` as in its GroupSpec."""

    name: str
    task_type: str = "container"
    network: str = "default"
    ports: tuple[str, ...] = ()

    def body(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "name": self.name,
            "task_type": self.task_type,
            "network": self.network,
            "ports": list(self.ports),
        }


@dataclass(frozen=True, slots=True)
class GangMember:
    """One task of the gang and its current attempt.

    `rank`: its position among all tasks of the job, by group and index. `number`: of the attempt, 0
    before the first. `cell`: the cell of an unfinished attempt. `addresses`: "host:port" of its
    published ports, from when it is RUNNING.
    """

    rank: int
    group: GangGroup
    index: int
    state: TaskState
    number: int = 0
    cell: str | None = None
    addresses: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the name of the member."""
        return f"{self.group.name}-{self.index}"


@dataclass(frozen=True, slots=True)
class GangKey:
    """The ed25519 key pair of a gang in OpenSSH formats, shared by all members."""

    private: str = field(repr=False)
    public: str

    def body(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"private": self.private, "public": self.public}


@dataclass(frozen=True, slots=True)
class Gang:
    """All members by rank.

    `is_ready`: the minima are met by members that run or succeeded. `key`: only in a launch
    context.
    """

    members: tuple[GangMember, ...]
    is_ready: bool = False
    key: GangKey | None = None

    @property
    def is_settled(self) -> bool:
        """Return whether every member is RUNNING or has ended."""
        return not any(member.state in _OPEN for member in self.members)

    def find(self, group: str, index: int) -> GangMember | None:
        """Return the member with that index in that group."""
        for member in self.members:
            if member.index == index and member.group.name == group:
                return member
        return None

    def body(self) -> dict[str, Any]:
        """Return the JSON form; each group once."""
        shared = {member.group.name: member.group for member in self.members}
        place = {name: position for position, name in enumerate(shared)}
        return fields.without_none(
            {
                "groups": [group.body() for group in shared.values()],
                "members": [
                    [
                        place[member.group.name],
                        member.index,
                        int(member.state),
                        member.number,
                        member.cell,
                        dict(member.addresses),
                    ]
                    for member in self.members
                ],
                "ready": self.is_ready,
                "key": None if self.key is None else self.key.body(),
            }
        )


def read_gang(item: Any) -> Gang:
    """Return a gang. Raise MalformedMessage."""
    body = fields.as_object(item)
    groups = fields.listing(body, "groups", _read_group)
    rows = fields.listing(body, "members", lambda row: row)
    key = fields.mapping(body, "key", None)
    return Gang(
        members=tuple(_read_member(row, rank, groups) for rank, row in enumerate(rows)),
        is_ready=fields.flag(body, "ready", False),
        key=None
        if key is None
        else GangKey(fields.text(key, "private"), fields.text(key, "public")),
    )


def _read_group(item: Any) -> GangGroup:
    body = fields.as_object(item)
    return GangGroup(
        name=fields.text(body, "name"),
        task_type=fields.text(body, "task_type", "container"),
        network=fields.text(body, "network", "default"),
        ports=fields.listing(body, "ports", fields.as_text),
    )


def _read_member(item: Any, rank: int, groups: tuple[GangGroup, ...]) -> GangMember:
    match item:
        case [
            int(position),
            int(index),
            int(state),
            int(number),
            str() | None as cell,
            dict(addresses),
        ] if 0 <= position < len(groups) and state in STATE_OF:
            return GangMember(
                rank=rank,
                group=groups[position],
                index=index,
                state=STATE_OF[state],
                number=number,
                cell=cell,
                addresses={name: fields.as_text(text) for name, text in addresses.items()},
            )
    raise MalformedMessage("a member is [group, index, state, number, cell, addresses]")
