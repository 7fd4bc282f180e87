"""Load entries of the result cache as tasks of a project can use them."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from controlplane.contract.artifacts import path_of
from controlplane.domain.cache.keys import identity_of
from controlplane.domain.errors import NotFound
from controlplane.domain.roles import Place
from controlplane.queries.attempts.artifacts import describe_artifacts
from controlplane.queries.sql import Row, first_row, named_rows

Scope = Literal["project", "domain"]
SCOPES: tuple[Scope, ...] = ("project", "domain")

_COLUMNS = """
SELECT e.id, e.project_id, e.key, CASE WHEN e.is_shared THEN 'domain' ELSE 'project' END AS scope,
       d.name AS domain, p.name AS project, e.job_id AS job, e.task_id AS task, e.attempt_uid,
       u.username AS submitter, e.created_at, e.used_at, e.hits, e.size_bytes,
       jsonb_array_length(e.outputs) AS outputs_count
"""
_TABLES = """
JOIN controlplane_project p ON p.id = e.project_id
JOIN controlplane_domain d ON d.id = e.domain_id
LEFT JOIN auth_user u ON u.id = e.owner_id
"""


@dataclass(frozen=True, slots=True)
class CacheUser:
    """A project whose tasks use the cache. `readable`: projects of the reader; None: all."""

    project_id: int
    domain_id: int
    name: str
    readable: Collection[int] | None = None

    def identity(self, scope: Scope, key: str) -> Any:
        """Return the identity of a key of the project or its domain."""
        key_of = {"project": self.project_id, "domain": self.domain_id}
        return identity_of(f"{scope} {key_of[scope]}", key)


@dataclass(frozen=True, slots=True)
class EntryPlace:
    """An entry, and the place of the task that populated it."""

    entry_id: int
    place: Place


def list_entries(
    user: CacheUser, *, scope: Scope | None, key: str | None, before: int | None, limit: int
) -> list[dict[str, Any]]:
    """Return at most `limit` entries that the project's tasks can use, newest first.

    `before`: the id of an entry; only earlier ones are returned.
    """
    scopes = SCOPES if scope is None else (scope,)
    if key is not None:
        source = _BY_IDENTITY
    else:
        # Each part has an index in the order of ids.
        source = " UNION ALL ".join(_OWN if name == "project" else _SHARED for name in scopes)
    found = named_rows(
        f"""
        {_COLUMNS} FROM ({source}) i JOIN controlplane_cacheentry e ON e.id = i.id {_TABLES}
        WHERE %(before)s::bigint IS NULL OR e.id < %(before)s
        ORDER BY e.id DESC LIMIT %(limit)s
        """,
        {
            "identities": [user.identity(name, key or "") for name in scopes],
            "project": user.project_id,
            "domain": user.domain_id,
            "before": before,
            "limit": limit,
        },
    )
    return [_document(row, user.readable) for row in found]


_BY_IDENTITY = """
SELECT id FROM controlplane_cacheentry
WHERE identity = ANY(%(identities)s::uuid[]) AND evicted_at IS NULL
"""
_LIVE = """
evicted_at IS NULL AND (%(before)s::bigint IS NULL OR id < %(before)s)
ORDER BY id DESC LIMIT %(limit)s
"""
_OWN = f"""
(SELECT id FROM controlplane_cacheentry
 WHERE project_id = %(project)s AND NOT is_shared AND {_LIVE})
"""
_SHARED = f"""
(SELECT id FROM controlplane_cacheentry
 WHERE domain_id = %(domain)s AND is_shared AND {_LIVE})
"""


def get_entry(user: CacheUser, scope: Scope, key: str) -> dict[str, Any]:
    """Return one entry with its result and outputs. Raise NotFound."""
    row = first_row(
        f"""
        {_COLUMNS}, e.result, e.outputs FROM controlplane_cacheentry e {_TABLES}
        WHERE e.identity = %s AND e.evicted_at IS NULL
        """,
        [user.identity(scope, key)],
    )
    if row is None:
        raise _missing(user, scope, key)
    uid = row.attempt_uid
    outputs = describe_artifacts(uid, row.outputs, base=path_of(str(uid), ""))
    return {**_document(row, user.readable), "result": row.result, "outputs": outputs}


def find_entry_place(user: CacheUser, scope: Scope, key: str) -> EntryPlace:
    """Return an entry with its place. Raise NotFound."""
    row = first_row(
        """
        SELECT id, project_id, domain_id, owner_id FROM controlplane_cacheentry
        WHERE identity = %s AND evicted_at IS NULL
        """,
        [user.identity(scope, key)],
    )
    if row is None:
        raise _missing(user, scope, key)
    return EntryPlace(row.id, Place(row.project_id, row.domain_id, row.owner_id))


def _missing(user: CacheUser, scope: Scope, key: str) -> NotFound:
    where = user.name if scope == "project" else user.name.partition("/")[0]
    return NotFound(f"{scope} {where} has no cache entry {key}")


def _document(row: Row, readable: Collection[int] | None) -> dict[str, Any]:
    document = row._asdict()
    origin = {name: document.pop(name) for name in ("job", "task", "attempt_uid", "submitter")}
    project_id = document.pop("project_id")
    if readable is not None and project_id not in readable:
        document["project"], origin = None, dict.fromkeys(origin)
    origin["populated_at"] = document.pop("created_at")
    return {**document, "origin": origin, "result": None, "outputs": None}
