"""Whom a quota is for, what it allows, and what of it is used."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class ScopeKind(StrEnum):
    """The three that may have a quota."""

    USER = "user"
    PROJECT = "project"
    DOMAIN = "domain"


@dataclass(frozen=True, slots=True, order=True)
class Scope:
    """One user, project or domain, by id."""

    kind: ScopeKind
    key: int


@dataclass(frozen=True, slots=True)
class ScopeLimits:
    """What a scope may have at once. None, and a resource that is not named: as much as it likes.

    `resources`: in cpu_millis, memory_mib, disk_mib, gpu and named units. `pending_tasks`: so many
    of its waiting tasks take part in placement. `weight`: its share under fair_share.
    """

    resources: Mapping[str, int] = field(default_factory=dict)
    running_tasks: int | None = None
    running_jobs: int | None = None
    pending_tasks: int | None = None
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits of a scope, with what its unreleased attempts hold.

    `name`: as people know it ("alice", "default/default"). `jobs`: ids of the jobs that hold
    something, `leaving_jobs`: of those all of whose attempts have ended; both are read only where
    `running_jobs` is limited.
    """

    scope: Scope
    name: str
    limits: ScopeLimits
    resources: Mapping[str, int] = field(default_factory=dict)
    running_tasks: int = 0
    jobs: frozenset[int] = frozenset()
    leaving_jobs: frozenset[int] = frozenset()

    @property
    def title(self) -> str:
        """ "user alice" """
        return f"{self.scope.kind} {self.name}"
