"""Concurrency keys: the rules of groups, and the attempts that count against a key."""

from collections.abc import Iterable
from datetime import datetime

from controlplane.domain.placement.model.concurrency import ConcurrencyRule, KeyUsage
from controlplane.queries.sql import decoded, rows

# The first number of the advisory locks, so that placement and submission never exclude each other:
# placement takes its locks while it holds jobs, submission locks jobs while it holds its own.
PLACING, SUBMITTING = 0, 1


def load_rules(group_ids: Iterable[int]) -> dict[int, ConcurrencyRule]:
    """Return the rules of the groups whose jobs have a concurrency key."""
    found = rows(
        """
        SELECT g.id, s.concurrency FROM controlplane_taskgroup g
        JOIN controlplane_shape s ON s.id = g.shape_id AND s.concurrency IS NOT NULL
        WHERE g.id = ANY(%s)
        """,
        [sorted(set(group_ids))],
    )
    return {group_id: ConcurrencyRule.read(decoded(rule)) for group_id, rule in found}


def lock_keys(key_ids: Iterable[int], *, by: int = PLACING) -> None:
    """Lock the keys until the end of the transaction, by id, against others of the same kind."""
    ids = [key_id << 1 | by for key_id in sorted(set(key_ids))]
    if ids:
        # A key has no row: it needs no configuration, and leaves nothing to remove.
        rows(
            """
            SELECT pg_advisory_xact_lock(n) FROM (
                SELECT n FROM unnest(%s::bigint[]) n ORDER BY n OFFSET 0
            ) ordered
            """,
            [ids],
        )


def load_key_usage(
    rules: Iterable[ConcurrencyRule | None], *, now: datetime
) -> tuple[KeyUsage, ...]:
    """Return the usage of the keys of `rules`, in all pools, by id; no statement without a key."""
    used = {rule for rule in rules if rule is not None}
    if not used:
        return ()
    ids = sorted({rule.key_id for rule in used})
    held = dict(
        rows(
            """
            SELECT concurrency_id, count(*) FROM controlplane_attempt
            WHERE concurrency_id = ANY(%s) AND released_at IS NULL GROUP BY concurrency_id
            """,
            [ids],
        )
    )
    started = _load_starts(used, now)
    return tuple(KeyUsage(key, held.get(key, 0), started.get(key, {})) for key in ids)


def _load_starts(rules: Iterable[ConcurrencyRule], now: datetime) -> dict[int, dict[int, int]]:
    """Return by key and seconds the attempts created since then, at most as many as rules need."""
    most: dict[tuple[int, int], int] = {}
    for rule in rules:
        if rule.starts is not None:
            span = rule.key_id, rule.starts.seconds
            most[span] = max(most.get(span, 0), rule.starts.count)
    if not most:
        return {}
    # Ordered, so that the index is read: PostgreSQL would expect enough in any part of the table.
    found = rows(
        """
        SELECT w.id, w.seconds, (SELECT count(*) FROM (
            SELECT FROM controlplane_attempt a
            WHERE a.concurrency_id = w.id
              AND a.created_at > %s - make_interval(secs => w.seconds)
            ORDER BY a.created_at DESC LIMIT w.most
        ) recent)
        FROM unnest(%s::bigint[], %s::integer[], %s::integer[]) AS w (id, seconds, most)
        """,
        [now, [key for key, _ in most], [seconds for _, seconds in most], list(most.values())],
    )
    started: dict[int, dict[int, int]] = {}
    for key, seconds, count in found:
        started.setdefault(key, {})[seconds] = count
    return started


def load_key_jobs(key_ids: Iterable[int]) -> dict[int, list[tuple[int, int]]]:
    """Return by key (job, number of attempts) of the jobs that hold it, oldest first."""
    ids = sorted(set(key_ids))
    if not ids:
        return {}
    found = rows(
        """
        SELECT concurrency_id, job_id, count(*) FROM controlplane_attempt
        WHERE concurrency_id = ANY(%s) AND released_at IS NULL GROUP BY 1, 2 ORDER BY 1, 2
        """,
        [ids],
    )
    jobs: dict[int, list[tuple[int, int]]] = {}
    for key_id, job_id, count in found:
        jobs.setdefault(key_id, []).append((job_id, count))
    return jobs
