"""Types of documents about tenancy.

Generated from docs/openapi.yaml by `make docs`.
"""

from typing import Any, TypedDict


class StoredSecret(TypedDict):
    """A secret without its value."""

    name: str
    domain: str
    project: str
    size: int
    version: int
    registry_server: str
    written_by: str | None
    created_at: str
    updated_at: str


class Token(TypedDict):
    """An API token without its value."""

    id: int
    name: str
    user: str
    role: str
    projects: list[str] | None
    hidden_projects: int
    prefix: str
    created_at: str
    expires_at: str | None
    last_used_at: str | None


class GrantedToken(TypedDict):
    """A new API token. `token`: its value, which cannot be read again."""

    id: int
    name: str
    user: str
    role: str
    projects: list[str] | None
    hidden_projects: int
    prefix: str
    created_at: str
    expires_at: str | None
    last_used_at: str | None
    token: str


class User(TypedDict):
    """A user. `role`: the most that the user's tokens permit."""

    name: str
    active: bool
    role: str
    date_joined: str
    last_login: str | None


class HeldRole(TypedDict):
    """A role of the caller on a project or on all projects of a domain."""

    domain: str
    project: str | None
    role: str


class Whoami(TypedDict):
    """The caller. `role`: the most that the presented token permits."""

    user: str
    role: str
    installation: str | None
    roles: list[HeldRole]
    token: Token


class AuditLine(TypedDict):
    """A line of the audit log."""

    id: int
    at: str
    actor: str
    via: str
    token: str
    address: str
    request_id: str
    action: str
    subject: str
    text: str
    project: str | None
    domain: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class ProjectHold(TypedDict):
    """An open hold: no waiting task is placed until its release."""

    by: str
    reason: str
    since: str
    role: str
    project: str


class Project(TypedDict):
    """A project. `role`: that of the caller, limited by the presented token."""

    name: str
    domain: str
    project: str
    role: str
    archived: bool
    archived_at: str | None
    stored_bytes: int
    stored_bytes_limit: int | None
    hold: ProjectHold | None


class Member(TypedDict):
    """A user or group with a role."""

    kind: str
    name: str
    role: str
    created_at: str


class ServiceAccount(TypedDict):
    """A user for a machine, without a password, of one project."""

    name: str
    role: str | None
    created_at: str
