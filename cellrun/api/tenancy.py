"""Call the API about projects, members, users, tokens, secrets and the audit log."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Literal

from cellrun.api.paths import members_path, names_of, path_to, project_path, project_query
from cellrun.api.transport import ApiTransport
from cellrun.documents import (
    AuditLine,
    GrantedToken,
    Member,
    Project,
    ServiceAccount,
    StoredSecret,
    Token,
    User,
    Whoami,
)


class ProjectCalls(ApiTransport):
    """The calls about projects and secrets. Every method may raise Unreachable or ApiError."""

    def projects(self) -> list[Project]:
        """Return the readable projects by name, with the role on each."""
        return list(self._pages("/projects"))

    def project(self, name: str) -> Project:
        """Return one project, by domain/name, or by its name in the domain default."""
        return self._call("GET", project_path(name))

    def put_project(self, name: str, *, archived: bool | None = None) -> Project:
        """Create a project, or archive or unarchive it (managers). None: leave that as it is."""
        return self._call("PUT", project_path(name), body={"archived": archived})

    def hold_project(self, name: str, *, reason: str) -> Project:
        """Place no waiting task of a project until its release (managers)."""
        return self._call("POST", f"{project_path(name)}/hold", body={"reason": reason})

    def release_project(self, name: str, *, reason: str = "") -> Project:
        """Release a project from its hold (managers)."""
        return self._call("POST", f"{project_path(name)}/release", body={"reason": reason})

    def members(self, *, project: str | None = None, domain: str | None = None) -> list[Member]:
        """Return the members of a project or domain; without both, the auditors."""
        return list(self._pages(members_path(project, domain)))

    def put_member(
        self,
        kind: Literal["user", "group"],
        name: str,
        *,
        role: str | None,
        project: str | None = None,
        domain: str | None = None,
    ) -> Member:
        """Give a user or group a role on a project or domain; without both, that of an auditor."""
        path = members_path(project, domain) + path_to(f"{kind}s", name)
        return self._call("PUT", path, body={} if role is None else {"role": role})

    def remove_member(
        self,
        kind: Literal["user", "group"],
        name: str,
        *,
        project: str | None = None,
        domain: str | None = None,
    ) -> None:
        """Remove the role of a user or group."""
        self._call("DELETE", members_path(project, domain) + path_to(f"{kind}s", name))

    def service_accounts(self, project: str) -> list[ServiceAccount]:
        """Return the service accounts of a project by name (managers)."""
        return list(self._pages(project_path(project) + "/service-accounts"))

    def put_service_account(
        self, name: str, *, project: str, role: str = "submitter"
    ) -> ServiceAccount:
        """Create a service account, or change its role (managers)."""
        path = project_path(project) + path_to("service-accounts", name)
        return self._call("PUT", path, body={"role": role})

    def delete_service_account(self, name: str, *, project: str) -> None:
        """Deactivate a service account and revoke its tokens (managers)."""
        self._call("DELETE", project_path(project) + path_to("service-accounts", name))

    def secrets(self, *, project: str | None = None) -> list[StoredSecret]:
        """Return a project's secrets by name, without values.

        `project` is a name or domain/name; None: default/default, or else the caller's only one.
        """
        return list(self._pages("/secrets", project_query(project)))

    def secret(self, name: str, *, project: str | None = None) -> StoredSecret:
        """Return the metadata of one secret."""
        return self._call("GET", path_to("secrets", name), query=project_query(project))

    def put_secret(
        self, name: str, body: Mapping[str, Any], *, project: str | None = None
    ) -> StoredSecret:
        """Write a secret: `value`, `value_base64`, or `registry`.

        A registry login has `server` (host[:port]; default docker.io), `username`, `password`.
        """
        return self._call("PUT", path_to("secrets", name), query=project_query(project), body=body)

    def delete_secret(self, name: str, *, project: str | None = None) -> None:
        """Delete a secret."""
        self._call("DELETE", path_to("secrets", name), query=project_query(project))


class AccountCalls(ApiTransport):
    """The calls about tokens, users and the audit log; may raise Unreachable or ApiError."""

    def whoami(self) -> Whoami:
        """Return the user, roles and token of this session."""
        return self._call("GET", "/whoami")

    def tokens(self, *, user: str | None = None, project: str | None = None) -> list[Token]:
        """Return own tokens without values, newest first; as an operator those of all users.

        `project`: those of all users that are limited to this project (its managers).
        """
        return list(self._pages("/tokens", {"user": user, "project": project}))

    def create_token(
        self,
        name: str,
        *,
        role: str = "submitter",
        user: str | None = None,
        projects: Sequence[str] | None = None,
        expires_in_days: int,
    ) -> GrantedToken:
        """Create a token, limited to `projects` if given. Its value is in this document only."""
        named = projects and ["/".join(names_of(name)) for name in projects]
        body = {"name": name, "role": role, "user": user, "expires_in_days": expires_in_days}
        return self._call("POST", "/tokens", body={**body, "projects": named or None})

    def revoke_token(self, token_id: int) -> None:
        """Revoke a token."""
        self._call("DELETE", path_to("tokens", token_id))

    def users(self) -> list[User]:
        """Return the users by name (operators)."""
        return list(self._pages("/users"))

    def put_user(self, name: str, *, active: bool = True) -> User:
        """Create, activate or deactivate a user (operators)."""
        return self._call("PUT", path_to("users", name), body={"active": active})

    def audit(self, *, limit: int | None = None, **filters: str | int | None) -> list[AuditLine]:
        """Return lines of the audit log, newest first; with `after` (an id), oldest first."""
        found = self._pages("/audit", filters)
        return list(found if limit is None else islice(found, limit))
