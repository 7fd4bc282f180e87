"""What tasks read and wrote: contents of inputs, results of groups, output of attempts."""

import json
from collections.abc import Iterator
from uuid import UUID

from django.conf import settings

from controlplane.contract.states import TaskState
from controlplane.domain.links import is_link_valid, link_key
from controlplane.outbox import store
from controlplane.outbox.store import LogPiece
from controlplane.queries.sql import rows

STREAMS = store.STREAMS
MAX_PIECE_BYTES = 8 * 1024 * 1024
_PAGE = 1_000


def is_signed(path: str, *, expires: str, signature: str, at: float) -> bool:
    """Whether a link to `path` is one of ours and still valid at `at` (seconds since 1970)."""
    key = link_key(settings.SECRET_KEY)
    return is_link_valid(key, path, expires=expires, signature=signature, at=at)


def read_input(digest: str) -> bytes | None:
    """The content with that SHA-256; None if it is not here."""
    return store.read_input(digest)


def iterate_results(group_id: int) -> Iterator[bytes]:
    """The results of a group's succeeded tasks by index, each a JSON line of name and content.

    In the retry of a job also those that succeeded before, in the jobs that were retried.
    """
    groups, after = _find_chain(group_id), -1
    while True:
        found = rows(
            """
            SELECT t.index, a.result FROM controlplane_task t
            JOIN controlplane_attempt a ON a.uid = t.attempt_uid
            WHERE t.group_id = ANY(%s) AND t.state = %s AND t.index > %s AND a.result IS NOT NULL
            ORDER BY t.index LIMIT %s
            """,
            [groups, int(TaskState.SUCCEEDED), after, _PAGE],
        )
        for index, result in found:
            yield json.dumps({"name": str(index), "content": result}).encode() + b"\n"
        if len(found) < _PAGE:
            return
        after = found[-1][0]


def _find_chain(group_id: int) -> list[int]:
    """The group, and those of the same name in the jobs that its own is a retry of.

    A task that succeeded is in no later one: each index succeeded once at most.
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
    """Whether there is such a group."""
    return bool(rows("SELECT 1 FROM controlplane_taskgroup WHERE id = %s", [group_id]))


def read_output(uid: UUID, stream: str, *, after: int, tail: int | None) -> LogPiece:
    """A part of a stream from the cursor `after` on, or its last `tail` lines."""
    start = find_start(uid, stream, after=after, tail=tail)
    return store.read_log(uid, stream, offset=start, limit=MAX_PIECE_BYTES)


def find_start(uid: UUID, stream: str, *, after: int, tail: int | None) -> int:
    """Where reading begins: at the cursor, or where the last `tail` lines begin, if later."""
    if tail is None:
        return after
    return max(after, store.find_tail(uid, stream, lines=tail, limit=MAX_PIECE_BYTES))
