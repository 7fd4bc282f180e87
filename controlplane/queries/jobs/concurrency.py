"""Find the unfinished jobs with a concurrency key."""

from collections.abc import Iterable

from controlplane.domain.jobs.concurrency import KeyHolder
from controlplane.queries.jobs.submission import OPEN_COUNT
from controlplane.queries.sql import rows


def find_key_holders(key_ids: Iterable[int]) -> dict[int, list[KeyHolder]]:
    """Return the unfinished jobs with one of the keys by its id, oldest first."""
    found = rows(
        f"""
        SELECT j.concurrency_id, j.id, j.owner_id, sum({OPEN_COUNT})::bigint,
               j.ending_as IS NOT NULL
        FROM controlplane_job j JOIN controlplane_taskgroup g ON g.job_id = j.id
        WHERE j.concurrency_id = ANY(%s) AND j.finished_at IS NULL
        GROUP BY j.id ORDER BY j.id
        """,
        [sorted(set(key_ids))],
    )
    holders: dict[int, list[KeyHolder]] = {}
    for key_id, *holder in found:
        holders.setdefault(key_id, []).append(KeyHolder(*holder))
    return holders
