"""Load contents of inputs, results of groups, and output and artifacts of attempts."""

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, BinaryIO
from uuid import UUID

from django.conf import settings

from controlplane.contract.artifacts import CHECKPOINT, path_of, prefix_of, quoted_name
from controlplane.contract.states import TaskState
from controlplane.domain.cells.signed_links import is_link_valid, link_key
from controlplane.domain.errors import Conflict, NotFound
from controlplane.queries.sql import Row, decoded, first_row, named_rows, rows, scalar
from controlplane.storage.current import current_store
from controlplane.storage.interface import STREAMS, LogPiece

__all__ = ("STREAMS",)

MAX_PIECE_BYTES = 8 * 1024 * 1024
_PAGE = 1_000
_OUTPUTS_PAGE = 20  # tasks; each may have left a thousand files


def is_signed(
    path: str, *, expires: str, signature: str, at: float, group: int | None = None
) -> bool:
    """Return whether a link to `path` is correctly signed and valid at `at` (Unix time).

    `group`: for whose cells it was made; None for a browser.
    """
    return any(
        is_link_valid(link_key(key), path, expires=expires, signature=signature, at=at, group=group)
        for key in (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    )


def read_input(digest: str) -> bytes | None:
    """Return the content with that SHA-256; None if it is not stored."""
    return current_store().read_input(digest)


def link_to_input(digest: str) -> str | None:
    """Return a URL of the object store for an input; None: web must send it."""
    return current_store().link_to_input(digest)


def iterate_results(group_id: int) -> Iterator[bytes]:
    """Yield the results of a group's succeeded tasks by index, as JSON lines of name and content.

    In a retry, include the tasks that succeeded in the jobs that were retried.
    """
    for index, _, result in _iterate_succeeded(group_id, "result", _PAGE):
        yield json.dumps({"name": str(index), "content": result}).encode() + b"\n"


def digest_results(group_id: int) -> list[tuple[str, str]]:
    """Return (index, SHA-256) of the results of a group's succeeded tasks."""
    return [
        (str(index), hashlib.sha256(result.encode()).hexdigest())
        for index, _, result in _iterate_succeeded(group_id, "result", _PAGE)
    ]


def digest_outputs(group_id: int, name: str) -> list[tuple[str, str]]:
    """Return (name, SHA-256) of the files that `iterate_outputs` yields."""
    return [
        (f"{index}/{item['name']}", item["sha256"])
        for index, _, items in _iterate_succeeded(group_id, "outputs", _OUTPUTS_PAGE)
        for item in decoded(items) or []
        if item["name"] == name or item["name"].startswith(f"{name}/")
    ]


def _iterate_succeeded(group_id: int, column: str, page: int) -> Iterator[tuple[Any, ...]]:
    """Yield (index, uid of the attempt, `column` of it) of succeeded tasks where that is not null.

    Read pages by index, including the jobs that the group's job is a retry of. `column`: result or
    outputs. A task with a result from the cache has those of the entry's attempt.
    """
    own = "a.result" if column == "result" else "a.details -> 'outputs'"
    statement = f"""
        SELECT * FROM (
            SELECT t.index, COALESCE(e.attempt_uid, a.uid),
                   CASE WHEN e.id IS NULL THEN {own} ELSE e.{column} END AS found
            FROM controlplane_task t
            LEFT JOIN controlplane_attempt a ON a.uid = t.attempt_uid
            LEFT JOIN controlplane_cacheentry e ON e.id = t.cache_entry_id
            WHERE t.group_id = ANY(%s) AND t.state = %s AND t.index > %s
        ) t
        WHERE found IS NOT NULL ORDER BY index LIMIT %s
        """
    groups, after = _find_chain(group_id), -1
    while True:
        found = rows(statement, [groups, int(TaskState.SUCCEEDED), after, page])
        yield from found
        if len(found) < page:
            return
        after = found[-1][0]


def _find_chain(group_id: int) -> list[int]:
    """Return the group, and the groups of its name in the jobs that its job is a retry of.

    No later job contains a task that succeeded, so each index succeeded at most once.
    """
    found = rows(
        """
        WITH RECURSIVE chain (group_id, name, retry_of_id) AS (
            SELECT g.id, g.name, j.retry_of_id FROM controlplane_taskgroup g
            JOIN controlplane_job j ON j.id = g.job_id WHERE g.id = %s
            UNION ALL
            SELECT g.id, g.name, j.retry_of_id FROM chain c
            JOIN controlplane_job j ON j.id = c.retry_of_id
            JOIN controlplane_taskgroup g ON g.job_id = j.id AND g.name = c.name
        )
        SELECT group_id FROM chain
        """,
        [group_id],
    )
    return [found_id for (found_id,) in found]


def has_group(group_id: int) -> bool:
    """Return whether the group exists."""
    return bool(rows("SELECT 1 FROM controlplane_taskgroup WHERE id = %s", [group_id]))


def read_output(uid: UUID, stream: str, *, after: int, tail: int | None) -> LogPiece:
    """Return a part of a stream from the cursor `after` on, or its last `tail` lines."""
    start = find_start(uid, stream, after=after, tail=tail)
    return current_store().read_log(uid, stream, offset=start, limit=MAX_PIECE_BYTES)


def find_start(uid: UUID, stream: str, *, after: int, tail: int | None) -> int:
    """Return the offset to read from: the cursor, or the beginning of the last `tail` lines."""
    if tail is None:
        return after
    return max(after, current_store().find_tail(uid, stream, lines=tail, limit=MAX_PIECE_BYTES))


ARTIFACT_PATH = "/api/v1/store/artifacts/"
_PREFIX_COLUMNS = """
SELECT a.uid, d.name AS domain, p.name AS project, a.job_id, a.task_id FROM controlplane_attempt a
JOIN controlplane_job j ON j.id = a.job_id
JOIN controlplane_project p ON p.id = j.project_id
JOIN controlplane_domain d ON d.id = p.domain_id
"""


class ExternalArtifact(Conflict):
    """The artifact is not in the local store, but at `uri`."""

    def __init__(self, name: str, uri: str) -> None:
        super().__init__(f"{name} is kept at {uri}, and not here")
        self.uri = uri


def find_prefix(uid: UUID) -> str | None:
    """Return the prefix of an attempt's artifacts; None if there is no such attempt."""
    row = first_row(f"{_PREFIX_COLUMNS} WHERE a.uid = %s", [uid])
    if row is not None:
        return _prefix(row)
    # The attempt was deleted; its files belong to an entry of the cache.
    found: str | None = scalar(
        "SELECT prefix FROM controlplane_cacheentry WHERE attempt_uid = %s LIMIT 1", [uid]
    )
    return found


def find_size_limit(uid: UUID) -> int | None:
    """Return the limit of the pool for the artifacts of the attempt, in MiB, if it has one."""
    found: int | None = scalar(
        """
        SELECT (p.job_limits ->> 'max_artifact_mib')::bigint FROM controlplane_attempt a
        JOIN controlplane_job j ON j.id = a.job_id JOIN controlplane_pool p ON p.id = j.pool_id
        WHERE a.uid = %s
        """,
        [uid],
    )
    return found


def is_over(uid: UUID) -> bool:
    """Return whether the attempt is released or deleted, so that its artifacts are final."""
    statement = "SELECT 1 FROM controlplane_attempt WHERE uid = %s AND released_at IS NULL"
    return not rows(statement, [uid])


def is_purged(uid: UUID) -> bool:
    """Return whether a purge of the attempt may have begun or ended: new files would be orphans."""
    return bool(find_purged([uid]))


def find_purged(uids: Collection[UUID]) -> set[UUID]:
    """Return the attempts of which a purge may have begun or ended."""
    found = rows(
        """
        SELECT a.uid FROM controlplane_attempt a JOIN controlplane_job j ON j.id = a.job_id
        WHERE a.uid = ANY(%s::uuid[]) AND (j.deleted_at IS NULL OR j.settled_at IS NULL)
        """,
        [list(uids)],
    )
    return set(uids) - {uid for (uid,) in found}


def find_prefixes_of_tasks(task_ids: Sequence[int], limit: int) -> dict[UUID, tuple[int, str]]:
    """Return the job and the prefix of up to `limit` attempts of the tasks."""
    statement = f"{_PREFIX_COLUMNS} WHERE a.task_id = ANY(%s) LIMIT %s"
    found = named_rows(statement, [list(task_ids), limit])
    return {row.uid: (row.job_id, _prefix(row)) for row in found}


def _prefix(row: Row) -> str:
    return prefix_of(
        domain=row.domain,
        project=row.project,
        job=row.job_id,
        task=row.task_id,
        attempt=str(row.uid),
    )


def list_artifacts(uid: UUID) -> list[dict[str, Any]]:
    """Return an attempt's artifacts, as `describe_artifacts` does. Raise NotFound."""
    row = first_row(
        """
        SELECT a.details -> 'outputs' AS outputs FROM controlplane_attempt a
        JOIN controlplane_job j ON j.id = a.job_id WHERE a.uid = %s AND j.deleted_at IS NULL
        """,
        [uid],
    )
    # The files of a deleted attempt may belong to an entry of the cache.
    row = row or first_row(
        "SELECT outputs FROM controlplane_cacheentry WHERE attempt_uid = %s LIMIT 1", [uid]
    )
    if row is None:
        raise NotFound(f"there is no attempt {uid}")
    return describe_artifacts(uid, row.outputs, base=path_of(str(uid), ""))


def describe_artifacts(uid: UUID, outputs: Any, *, base: str) -> list[dict[str, Any]]:
    """Return name, size, sha256, uri and link of the `outputs` of an attempt, by name.

    `link`: the path below `base` that returns the content; None if it is not in the local store.
    """
    shown = []
    for item in decoded(outputs) or []:
        if _fetchable(uid, item) is not None:
            link = f"{base}{quoted_name(item['name'])}" if fetchable_path(uid, item) else None
            shown.append({**item, "link": link})
    return sorted(shown, key=lambda item: str(item["name"]))


def open_artifact(uid: UUID, name: str) -> tuple[BinaryIO, dict[str, Any]]:
    """Return the content and the description of an artifact. Raise NotFound, ExternalArtifact."""
    prefix, item = _find_artifact(uid, name)
    file = current_store().open_artifact(prefix, name)
    if file is None:
        raise NotFound(f"{name} is no longer stored")
    return file, item


def link_to_artifact(uid: UUID, name: str) -> tuple[str | None, dict[str, Any]]:
    """Return a URL of the object store for an artifact, and its description.

    Without a URL, web must send the artifact. Raise NotFound, ExternalArtifact.
    """
    prefix, item = _find_artifact(uid, name)
    return current_store().link_to_artifact(prefix, name), item


def _find_artifact(uid: UUID, name: str) -> tuple[str, dict[str, Any]]:
    """Return the prefix and the description of an artifact. Raise NotFound, ExternalArtifact."""
    item = next((item for item in list_artifacts(uid) if item["name"] == name), None)
    prefix = find_prefix(uid)
    if item is None or prefix is None:
        raise NotFound(f"attempt {uid} has no artifact {name[:255]}")
    if item["uri"] != path_of(str(uid), name):
        raise ExternalArtifact(name, item["uri"])
    return prefix, item


def read_beginning(uid: UUID, name: str, limit: int) -> bytes:
    """Return at most `limit` bytes of an artifact. Raise NotFound, ExternalArtifact."""
    with open_artifact(uid, name)[0] as file:
        return file.read(limit)


def find_output_base(uid: UUID, launch: Mapping[str, Any]) -> str | None:
    """Return the base URI of an attempt's artifacts; None if they are in the local store."""
    base = launch.get("output_base")
    return f"{base.rstrip('/')}/{find_prefix(uid)}" if base else None


def find_checkpoint(task_id: int, number: int) -> dict[str, Any] | None:
    """Return uri, size and sha256 of the newest checkpoint of an attempt before `number`."""
    row = first_row(
        """
        SELECT a.uid, output.item FROM controlplane_attempt a,
               jsonb_array_elements(a.details -> 'outputs') AS output (item)
        WHERE a.task_id = %s AND a.number < %s AND output.item ->> 'name' = %s
        ORDER BY a.number DESC LIMIT 1
        """,
        [task_id, number, CHECKPOINT],
    )
    return None if row is None else _fetchable(row.uid, row.item)


def iterate_outputs(group_id: int, name: str, link: Callable[[str], str]) -> Iterator[bytes]:
    """Yield where to fetch output `name` of a group's succeeded tasks: JSON lines, by index.

    A file is named <index>/<name>, a file of a folder <index>/<name>/<path>. `named`: at a URI of
    the submitter. Each item consists of whole lines.
    """
    for index, uid, items in _iterate_succeeded(group_id, "outputs", _OUTPUTS_PAGE):
        if lines := _lines_of(index, uid, decoded(items) or [], name, link):
            yield lines


def _lines_of(
    index: int, uid: UUID, items: list[Any], name: str, link: Callable[[str], str]
) -> bytes:
    lines = []
    for item in sorted(items, key=lambda item: str(item["name"])):
        if item["name"] != name and not item["name"].startswith(f"{name}/"):
            continue
        entry = _fetchable(uid, item)
        if entry is None:
            continue
        is_here = entry["uri"].startswith("/")
        line = {
            "name": f"{index}/{entry['name']}",
            "url": link(entry["uri"]) if is_here else entry["uri"],
            "sha256": entry["sha256"],
            "named": not is_here,
        }
        lines.append(json.dumps(line).encode() + b"\n")
    return b"".join(lines)


def fetchable_path(uid: UUID, item: Mapping[str, Any]) -> str | None:
    """Return the path to sign for a link to an artifact; None if it is not in the local store."""
    if item["uri"] != path_of(str(uid), item["name"]):
        return None
    rest = item["uri"].partition("/artifacts/")[2]
    return f"{ARTIFACT_PATH}{uid}/{rest}"


def _fetchable(uid: UUID, item: Any) -> dict[str, Any] | None:
    """Return the description of an artifact, with the path to sign if it is in the local store.

    Return None if it names another attempt's path in the store: that is neither shown nor signed.
    """
    entry: dict[str, Any] = dict(decoded(item))
    path = fetchable_path(uid, entry)
    if path is None and entry["uri"].startswith("/"):
        return None
    return entry | {"uri": path or entry["uri"]}
