"""Quotas: scopes with their names, limits and current usage."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

DEFAULT_NAME = "default"
"""Domain, project and pool of a job that names none."""


class ScopeKind(StrEnum):
    """Kinds of scopes that may have a quota."""

    USER = "user"
    PROJECT = "project"
    DOMAIN = "domain"


@dataclass(frozen=True, slots=True, order=True)
class Scope:
    """One user, project or domain, by id."""

    kind: ScopeKind
    key: int


def split_project_name(name: str) -> tuple[str, str]:
    """Return domain and project of `domain/project`, or of a bare name in the default domain."""
    domain, slash, project = name.partition("/")
    return (domain, project) if slash else (DEFAULT_NAME, name)


def scopes_of(owner_id: int, project_id: int, domain_id: int) -> tuple[Scope, Scope, Scope]:
    """Return the scopes of the quotas that apply to a job."""
    return (
        Scope(ScopeKind.USER, owner_id),
        Scope(ScopeKind.PROJECT, project_id),
        Scope(ScopeKind.DOMAIN, domain_id),
    )


@dataclass(frozen=True, slots=True)
class ScopeLimits:
    """Limits of a scope's concurrent usage. None and missing resources are unlimited.

    `resources`: by cpu_millis, memory_mib, disk_mib, gpu and named resource. `pending_tasks`:
    maximum number of waiting tasks that placement considers. `weight`: its share under fair_share.
    """

    resources: Mapping[str, int] = field(default_factory=dict)
    running_tasks: int | None = None
    running_jobs: int | None = None
    pending_tasks: int | None = None
    weight: float = 1.0

    @property
    def matter_to_placement(self) -> bool:
        """Return whether there is any limit, or a weight."""
        return self != ScopeLimits()


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits of a scope, and the resources that its unreleased attempts hold.

    `name`: display name ("alice", "default/default"). `jobs`: ids of jobs with unreleased attempts;
    `leaving_jobs`: those of them whose attempts have all ended. Both are loaded only if
    `running_jobs` is limited. `is_default`: the scope has no quota of its own.
    """

    scope: Scope
    name: str
    limits: ScopeLimits
    resources: Mapping[str, int] = field(default_factory=dict)
    running_tasks: int = 0
    jobs: frozenset[int] = frozenset()
    leaving_jobs: frozenset[int] = frozenset()
    is_default: bool = False

    @property
    def title(self) -> str:
        """Return kind and name: "user alice"."""
        return f"{self.scope.kind} {self.name}"
