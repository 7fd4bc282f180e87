"""Gang membership as members receive it: ranks, addresses and the gang's key pair.

Cells poll the web process for it while members run: addresses are known only once the peers run.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Self, cast

from controlplane.contract.codec import Document, Key, MalformedMessage
from controlplane.contract.states import TaskState

# States in which a member may still change its cell.
_OPEN = (TaskState.PENDING, TaskState.ASSIGNED, TaskState.BUILDING)


@dataclass(frozen=True, slots=True)
class GangGroup(Document):
    """The shared fields of the members of one group. `network`, `ports`: as in its GroupSpec."""

    name: str
    task_type: str = "container"
    network: str = "default"
    ports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GangMember:
    """One task of the gang and its current attempt.

    `rank`: its position among all tasks of the job, by group and index. `number`: of the attempt; 0
    before the first. `cell`: of an unfinished attempt. `addresses`: "host:port" by published port,
    once it is RUNNING.
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
class GangKey(Document):
    """The ed25519 key pair of a gang in OpenSSH formats, shared by all members."""

    private: str = field(repr=False)
    public: str


@dataclass(frozen=True, slots=True)
class Gang:
    """All members by rank.

    `is_ready`: enough members run or have succeeded to meet the minima. `key`: set only in a launch
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
        """Return the JSON form, which contains each group once."""
        shared = {member.group.name: member.group for member in self.members}
        positions = {name: position for position, name in enumerate(shared)}
        rows = tuple(
            _MemberRow(positions[m.group.name], m.index, m.state, m.number, m.cell, m.addresses)
            for m in self.members
        )
        body = _GangBody(tuple(shared.values()), rows, self.is_ready, self.key).body()
        return cast("dict[str, Any]", body)

    @classmethod
    def read(cls, item: Any) -> Self:
        """Return the gang from decoded JSON. Raise MalformedMessage."""
        body = _GangBody.read(item)
        members = [
            GangMember(
                rank,
                body.groups[row.group],
                row.index,
                row.state,
                row.number,
                row.cell,
                row.addresses,
            )
            for rank, row in enumerate(body.members)
        ]
        return cls(tuple(members), body.is_ready, body.key)


@dataclass(frozen=True, slots=True)
class _MemberRow(Document):
    """A member. `group`: the position of its group; its rank is its own position."""

    AS_LIST = True

    group: int
    index: int
    state: TaskState
    number: int
    cell: str | None = None
    addresses: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _GangBody(Document):
    groups: tuple[GangGroup, ...]
    members: tuple[_MemberRow, ...]
    is_ready: Annotated[bool, Key("ready")] = False
    key: GangKey | None = None

    def checked(self) -> Self:
        """Check that every member refers to a listed group."""
        for position, row in enumerate(self.members):
            if not 0 <= row.group < len(self.groups):
                raise MalformedMessage("is not the position of a group", f"members[{position}][0]")
        return self
