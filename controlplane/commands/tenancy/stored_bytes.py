"""Record the sizes of stored files by attempt and job, and count them for each project.

Every upload writes a row of its own attempt only. Convergence adds the changes to the totals of
projects, and is the only writer of these.
"""

from collections.abc import Callable, Iterable, Mapping
from uuid import UUID

from controlplane.domain.jobs.stored_bytes import LimitedStorage
from controlplane.queries.sql import execute, rows, scalar
from controlplane.queries.tenancy.stored_bytes import LIMIT, LIMITED, SIZE, UNCOUNTED, USED

# Rows of one statement: some 100 ms.
PAGE = 5_000

_COLUMNS = """
INSERT INTO controlplane_storedsize AS s
    (job_id, attempt_uid, project_id, file_bytes, stdout_bytes, stderr_bytes, counted_bytes,
     is_uncounted)
"""
# A deleted attempt has no row any more, and gets none. Sizes of streams and announced files only
# grow; two web processes may write them in either order.
_RECORD = f"""
{_COLUMNS}
SELECT a.job_id, a.uid, j.project_id, i.file, i.stdout, i.stderr, 0, true
FROM unnest(%s::uuid[], %s::bigint[], %s::bigint[], %s::bigint[]) AS i (uid, file, stdout, stderr)
JOIN controlplane_attempt a ON a.uid = i.uid JOIN controlplane_job j ON j.id = a.job_id
ORDER BY a.uid
ON CONFLICT (attempt_uid) DO UPDATE SET
    file_bytes = greatest(s.file_bytes, EXCLUDED.file_bytes),
    stdout_bytes = greatest(s.stdout_bytes, EXCLUDED.stdout_bytes),
    stderr_bytes = greatest(s.stderr_bytes, EXCLUDED.stderr_bytes), is_uncounted = true
"""


def record_artifacts(uid: UUID, total: int) -> None:
    """Record that the artifacts of an attempt have, or will have, `total` bytes."""
    if total:
        execute(_RECORD, [[uid], [total], [0], [0]])


def record_output(uid: UUID, stream: str, size: int) -> LimitedStorage | None:
    """Record the size of a stream of an attempt.

    Return the storage of its project if that was used up before; then no more should be stored.
    """
    return record_outputs({(uid, stream): size}).get(uid)


def record_outputs(sizes: Mapping[tuple[UUID, str], int]) -> dict[UUID, LimitedStorage]:
    """Record the sizes of streams, by attempt and name.

    Return the storage of the projects that were used up before, by attempt.
    """
    uids = sorted({uid for uid, _ in sizes})
    stdout, stderr = ([sizes.get((uid, name), 0) for uid in uids] for name in ("stdout", "stderr"))
    found = rows(
        f"""
        WITH recorded AS ({_RECORD} RETURNING attempt_uid, project_id)
        SELECT r.attempt_uid, d.name || '/' || p.name, {LIMIT}, {USED}
        FROM recorded r JOIN controlplane_project p ON p.id = r.project_id {LIMITED}
        WHERE {LIMIT} IS NOT NULL
        """,
        [uids, [0] * len(uids), stdout, stderr],
    )
    storages = {uid: LimitedStorage(*row) for uid, *row in found}
    return {uid: storage for uid, storage in storages.items() if storage.is_used_up}


def record_inputs(sizes: Iterable[tuple[int, int, int]]) -> None:
    """Record (job id, project id, bytes) of the inputs of new jobs."""
    found = [item for item in sizes if item[2]]
    if not found:
        return
    execute(
        f"""
        {_COLUMNS}
        SELECT i.job, NULL, i.project, i.size, 0, 0, 0, true
        FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[]) AS i (job, project, size)
        """,
        [[item[place] for item in found] for place in range(3)],
    )


def forget_attempts(uids: Iterable[UUID], *, keep_cached: bool = False) -> None:
    """Record that the store has nothing of these attempts.

    `keep_cached`: except artifacts that belong to an entry of the cache.
    """
    kept = "SELECT FROM controlplane_cacheentry e WHERE e.attempt_uid = s.attempt_uid"
    execute(
        f"""
        WITH locked AS MATERIALIZED (
            -- In the order of uploads, which lock several rows as well.
            SELECT id FROM controlplane_storedsize WHERE attempt_uid = ANY(%s::uuid[])
            ORDER BY attempt_uid FOR UPDATE
        )
        UPDATE controlplane_storedsize s SET
            file_bytes = CASE WHEN %s AND EXISTS ({kept}) THEN s.file_bytes ELSE 0 END,
            stdout_bytes = 0, stderr_bytes = 0, is_uncounted = true
        WHERE s.id = ANY(ARRAY(SELECT id FROM locked))
        """,
        [list(uids), keep_cached],
    )


def forget_inputs(job_ids: Iterable[int]) -> None:
    """Record that these jobs need no inputs any more."""
    execute(
        """
        UPDATE controlplane_storedsize s SET file_bytes = 0, is_uncounted = true
        WHERE s.job_id = ANY(%s) AND s.attempt_uid IS NULL
        """,
        [list(job_ids)],
    )


# In the order of the index. Rows that an upload has locked are counted by the next tick.
_COUNT = f"""
WITH page AS MATERIALIZED (
    SELECT s.id, s.project_id, {SIZE} AS size, s.counted_bytes
    {UNCOUNTED} ORDER BY s.project_id, s.id LIMIT %(page)s FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM controlplane_storedsize s USING page WHERE s.id = page.id AND page.size = 0
), counted AS (
    UPDATE controlplane_storedsize s SET counted_bytes = page.size, is_uncounted = false
    FROM page WHERE s.id = page.id AND page.size > 0
), added AS (
    INSERT INTO controlplane_storedtotal AS t (project_id, total_bytes)
    SELECT project_id, sum(size - counted_bytes) FROM page GROUP BY project_id ORDER BY project_id
    ON CONFLICT (project_id) DO UPDATE SET total_bytes = t.total_bytes + EXCLUDED.total_bytes
)
SELECT count(*) FROM page
"""


def count_sizes(is_over: Callable[[], bool]) -> Mapping[str, int]:
    """Add changed sizes to the totals of their projects, page by page, until `is_over()`."""
    done = 0
    while not is_over():
        found = int(scalar(_COUNT, {"page": PAGE}))
        done += found
        if found < PAGE:
            break
    return {"sizes_counted": done}
