"""Apply the concurrency keys of new jobs: refuse a job, or find the jobs that it replaces."""

from collections.abc import Collection, Sequence

from controlplane.domain.jobs.concurrency import judge_keys, may_conflict
from controlplane.domain.jobs.submission import PlannedJob, concurrency_of
from controlplane.queries.jobs.concurrency import find_key_holders
from controlplane.queries.placement.concurrency import SUBMITTING, lock_keys


def lock_keys_of(jobs: Sequence[PlannedJob]) -> None:
    """Lock the keys of the jobs that may be refused, or may replace others.

    Otherwise two concurrent submissions could both fit into the same room. The lock follows that
    of the user and precedes those of jobs.
    """
    rules = [concurrency_of(job.spec, job.project_id) for job in jobs if may_conflict(job)]
    lock_keys((rule.key_id for rule in rules if rule is not None), by=SUBMITTING)


def resolve_keys(jobs: Sequence[PlannedJob], leaving: Collection[int]) -> dict[int, list[int]]:
    """Return the result of `judge_keys`. Raise ConcurrencyKeyFull.

    `leaving`: jobs that these jobs replace by name, or by the overlap rule of a schedule. One
    statement if a job may conflict.
    """
    if not any(map(may_conflict, jobs)):
        return {}
    rules = [concurrency_of(job.spec, job.project_id) for job in jobs if may_conflict(job)]
    holders = find_key_holders(rule.key_id for rule in rules if rule is not None)
    return judge_keys(jobs, holders, leaving)
