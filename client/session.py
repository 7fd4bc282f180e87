"""The Python client: one typed method per operation of the API, and `wait`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal
from urllib.parse import quote

from client.documents import (
    Artifact,
    Attempt,
    AuditLine,
    CacheEntry,
    Cell,
    Change,
    GrantedToken,
    Job,
    Member,
    Pool,
    Project,
    QueueEntry,
    Quota,
    ServiceAccount,
    StoredSecret,
    Task,
    TaskArtifacts,
    Token,
    User,
    Whoami,
)
from client.errors import Unreachable
from client.polling import PollInterval, beats
from client.settings import load_settings
from client.states import TERMINAL_STATES
from client.transport import (
    MOST_ROWS,
    ApiTransport,
    Query,
    members_path,
    names_of,
    path_to,
    project_path,
)

DRAIN_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class LogPiece:
    """A part of a log, which may end within a line, and the cursor of the next part."""

    content: bytes
    cursor: str


class Session(ApiTransport):
    """Calls the API at `settings.url`. Every method may raise Unreachable or ApiError."""

    # ------------------------------------------------------------------ jobs

    def submit(self, spec: Mapping[str, Any]) -> Job:
        """Submit a job. A repeated submission with the same guid returns the same job."""
        return self._call("POST", "/jobs", body=spec)

    def dry_run(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Return where a job would be placed now, and why tasks would wait. Change nothing."""
        return self._call("POST", "/jobs:dry-run", body=spec)

    def jobs(self, *, limit: int = 50, **filters: str | None) -> Iterator[Job]:
        """Yield the newest `limit` jobs; filters: state, project, pool, label, name."""
        return self._pages("/jobs", filters, limit)

    def job(self, job_id: int) -> Job:
        """Return one job."""
        return self._call("GET", f"/jobs/{job_id}")

    def cancel_job(self, job_id: int, *, reason: str = "", force: bool = False) -> Job | None:
        """Cancel a job. `force`: kill its containers at once, without a grace period."""
        return self._call("POST", f"/jobs/{job_id}/cancel", body={"reason": reason, "force": force})

    def hold_job(self, job_id: int, *, reason: str) -> Job:
        """Place no waiting task of a job until its release; running tasks continue."""
        return self._call("POST", f"/jobs/{job_id}/hold", body={"reason": reason})

    def release_job(self, job_id: int, *, reason: str = "") -> Job:
        """Release a job from its hold."""
        return self._call("POST", f"/jobs/{job_id}/release", body={"reason": reason})

    def move_job(
        self,
        job_id: int,
        *,
        to: Literal["front", "end"] | None = None,
        band: str | None = None,
        reason: str = "",
    ) -> Job:
        """Move a job to the front or the end of its band, or to another band."""
        body = {"to": to, "band": band, "reason": reason}
        return self._call("POST", f"/jobs/{job_id}/move", body=body)

    def queue(self, pool: str, *, limit: int = 50) -> Iterator[QueueEntry]:
        """Yield the first groups in the queue of a pool, in the order of the next pass."""
        return self._pages(path_to("pools", pool, "queue"), {}, limit)

    def retry_job(self, job_id: int, *, key: str | None = None) -> Job:
        """Create a job of the tasks that did not succeed. The same key returns the same job."""
        return self._call("POST", f"/jobs/{job_id}/retry", key=key)

    def delete_job(self, job_id: int) -> None:
        """Delete a job that has ended with its tasks, history and output. Cannot be undone."""
        self._call("DELETE", f"/jobs/{job_id}")

    def wait(
        self,
        job_id: int,
        *,
        deadline_seconds: float | None = None,
        on_change: Callable[[Job], None] | None = None,
    ) -> Job:
        """Poll until the job is terminal and return it. Raise StillOpen after `deadline_seconds`.

        Poll again while the server is unavailable for a short time.
        """
        pace = PollInterval(deadline_seconds)
        previous: Job | None = None
        for _ in beats(pace, f"job {job_id}"):
            job = self.patiently(lambda: self.job(job_id), pace)
            if job != previous:
                pace.reset()
                if on_change is not None:
                    on_change(job)
            previous = job
            if job["state"] in TERMINAL_STATES:
                return job
        raise AssertionError("beats never end")

    # ------------------------------------------------------- tasks, attempts

    def tasks(
        self,
        job_id: int,
        *,
        group: str | None = None,
        index: int | None = None,
        limit: int = MOST_ROWS,
    ) -> Iterator[Task]:
        """Yield the tasks of a job by group and index."""
        return self._pages(
            path_to("jobs", job_id, "tasks"), {"group": group, "index": index}, limit
        )

    def task(self, task_id: int | str) -> Task:
        """Return one task, by id or guid."""
        return self._call("GET", path_to("tasks", task_id))

    def explain(self, task_id: int) -> dict[str, Any]:
        """Return why a task waits, where it runs, or how it ended."""
        return self._call("GET", f"/tasks/{task_id}/explain")

    def attempts(self, task_id: int) -> list[Attempt]:
        """Return the attempts of a task, oldest first."""
        attempts = self._pages(path_to("tasks", task_id, "attempts"))
        return sorted(attempts, key=lambda attempt: attempt["number"])

    def attempt(self, uid: str) -> Attempt:
        """Return one attempt."""
        return self._call("GET", path_to("attempts", uid))

    def log(self, uid: str, stream: str = "stdout", after: str = "0") -> LogPiece:
        """Return output of an attempt after the cursor `after`; more may follow."""
        answer = self._send(
            "GET",
            path_to("attempts", uid, "logs"),
            query={"stream": stream, "after": after},
            headers={"Accept": "text/plain, application/problem+json"},
        )
        return LogPiece(answer.content, answer.headers.get("X-Next-Cursor", after))

    def history(
        self,
        of: Literal["jobs", "tasks", "attempts"],
        key: int | str,
        *,
        merged: bool = True,
        limit: int = MOST_ROWS,
    ) -> Iterator[Change]:
        """Yield the history of an object, newest first. `merged`: equal changes are one entry."""
        query = {"merged": "true" if merged else "false"}
        return self._pages(path_to(of, key, "history"), query, limit)

    def artifacts(self, uid: str) -> list[Artifact]:
        """Return the artifacts of an attempt by name."""
        return self._call("GET", path_to("attempts", uid, "artifacts"))["results"]

    def task_artifacts(self, task_id: int | str) -> list[Artifact]:
        """Return the artifacts of a task by name: of its last succeeded, or else last, attempt."""
        return self._call("GET", path_to("tasks", task_id, "artifacts"))["results"]

    def job_artifacts(self, job_id: int, *, group: str | None = None) -> Iterator[TaskArtifacts]:
        """Yield the tasks of a job that have artifacts, with these."""
        return self._pages(path_to("jobs", job_id, "artifacts"), {"group": group})

    def read_artifact(self, uid: str, name: str) -> Iterator[bytes]:
        """Yield the content of an artifact in pieces."""
        # With the API's path, for which `_address` would search in the name.
        path = f"/api/v1{path_to('attempts', uid, 'artifacts')}/{quote(name)}"
        with self._open(path) as answer:
            yield from self._pieces(answer)

    @contextmanager
    def open_artifact(
        self, item: Artifact, start: int = 0
    ) -> Iterator[tuple[int, Iterator[bytes]]]:
        """Yield the offset at which the content begins, `start` or 0, and the content in pieces."""
        headers = {}
        if start:
            headers = {"Range": f"bytes={start}-", "If-Range": f'"{item["sha256"]}"'}
        with self._open(item["link"] or "", headers) as answer:
            is_part = answer.status_code == 206
            begin = answer.headers.get("Content-Range", "").startswith(f"bytes {start}-")
            if is_part and not begin:
                raise Unreachable(self.url, "it sent another part of the file than requested")
            yield start if is_part else 0, self._pieces(answer)

    def release_attempt(self, uid: str, *, reason: str) -> Attempt:
        """Release an ended attempt whose container is gone (operators)."""
        return self._call("POST", path_to("attempts", uid, "release"), body={"reason": reason})

    # ----------------------------------------------------------------- cache

    def cache_entries(
        self,
        *,
        project: str | None = None,
        scope: str | None = None,
        key: str | None = None,
        limit: int = MOST_ROWS,
    ) -> Iterator[CacheEntry]:
        """Yield the cache entries that a project can use, newest first.

        `project`: as in `secrets`.
        """
        query = {**_project_query(project), "scope": scope, "key": key}
        return self._pages("/cache", query, limit)

    def cache_entry(
        self, key: str, *, project: str | None = None, scope: str = "project"
    ) -> CacheEntry:
        """Return a cache entry with its result and outputs; `project` may be domain/name."""
        query = {**_project_query(project), "scope": scope}
        return self._call("GET", path_to("cache", key), query=query)

    def evict_cache_entry(
        self, key: str, *, project: str | None = None, scope: str = "project"
    ) -> None:
        """Evict a cache entry. Tasks that already have its result keep it."""
        query = {**_project_query(project), "scope": scope}
        self._call("DELETE", path_to("cache", key), query=query)

    # ----------------------------------------------------------------- cells

    def cells(self) -> list[Cell]:
        """Return all cells."""
        return list(self._pages("/cells"))

    def cell(self, name: str) -> Cell:
        """Return one cell."""
        return self._call("GET", path_to("cells", name))

    def drain(self, name: str, *, deadline_seconds: float | None = DRAIN_SECONDS) -> Cell | None:
        """Drain a cell (operators). `deadline_seconds`: until attempts are stopped; None: never."""
        body = {"deadline_seconds": deadline_seconds}
        return self._call("POST", path_to("cells", name, "drain"), body=body)

    def cordon(self, name: str) -> Cell:
        """Stop placement on a cell (operators)."""
        return self._order_cell(name, "cordon")

    def uncordon(self, name: str) -> Cell:
        """Resume placement on a cell (operators)."""
        return self._order_cell(name, "uncordon")

    def unquarantine(self, name: str) -> Cell:
        """Lift the quarantine of a cell (operators)."""
        return self._order_cell(name, "unquarantine")

    def _order_cell(self, name: str, order: str) -> Cell:
        return self._call("POST", path_to("cells", name, order), body={})

    # ---------------------------------------------------------- pools, quotas

    def pools(self) -> list[Pool]:
        """Return all pools."""
        return list(self._pages("/pools"))

    def pool(self, name: str) -> Pool:
        """Return one pool."""
        return self._call("GET", path_to("pools", name))

    def put_pool(self, name: str, changes: Mapping[str, Any]) -> Pool:
        """Create or change a pool; omitted fields keep their values (operators)."""
        return self._call("PUT", path_to("pools", name), body=changes)

    def confirm_loss(self, pool: str) -> Pool:
        """Confirm the suppressed loss of a pool's silent cells (operators)."""
        return self._call("POST", path_to("pools", pool, "confirm-loss"))

    def quotas(self, *, kind: str | None = None) -> list[Quota]:
        """Return the quotas with usage. `kind`: only those of user, project or domain."""
        return list(self._pages("/quotas", {"kind": kind}))

    def quota(self, kind: str, name: str) -> Quota:
        """Return limits and usage of a user, a domain, or a project (`domain/name`)."""
        return self._call("GET", path_to("quotas", kind, name))

    def put_quota(self, kind: str, name: str, changes: Mapping[str, Any]) -> Quota:
        """Set limits; omitted ones keep their values, None removes one (operators)."""
        return self._call("PUT", path_to("quotas", kind, name), body=changes)

    def delete_quota(self, kind: str, name: str) -> None:
        """Delete a quota: the default quota of its kind applies again (operators)."""
        self._call("DELETE", path_to("quotas", kind, name))

    # --------------------------------------------------------------- secrets

    def secrets(self, *, project: str | None = None) -> list[StoredSecret]:
        """Return a project's secrets by name, without values.

        `project` is a name or domain/name; None: default/default, or else the caller's only one.
        """
        return list(self._pages("/secrets", _project_query(project)))

    def secret(self, name: str, *, project: str | None = None) -> StoredSecret:
        """Return the metadata of one secret."""
        return self._call("GET", path_to("secrets", name), query=_project_query(project))

    def put_secret(
        self, name: str, body: Mapping[str, Any], *, project: str | None = None
    ) -> StoredSecret:
        """Write a secret: `value`, `value_base64`, or `registry`.

        A registry login has `server` (host[:port]; default docker.io), `username`, `password`.
        """
        return self._call("PUT", path_to("secrets", name), query=_project_query(project), body=body)

    def delete_secret(self, name: str, *, project: str | None = None) -> None:
        """Delete a secret."""
        self._call("DELETE", path_to("secrets", name), query=_project_query(project))

    # ----------------------------------------------------------------- audit

    def audit(self, *, limit: int | None = None, **filters: str | int | None) -> list[AuditLine]:
        """Return lines of the audit log, newest first; with `after` (an id), oldest first."""
        found = self._pages("/audit", filters)
        return list(found if limit is None else islice(found, limit))

    # -------------------------------------------------------------- projects

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

    # -------------------------------------------------------- tokens, users

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


def connect() -> Session:
    """Return a session with the current settings (`client.settings`). Raise NotConfigured."""
    return Session(load_settings())


def _project_query(project: str | None) -> Query:
    """Return the query for a project, `name` or `domain/name`; None: the server's default."""
    if project is None:
        return {}
    domain, slash, name = project.partition("/")
    return {"domain": domain, "project": name} if slash else {"project": project}
