"""Limit the unfinished tasks of each user.

Counting the open tasks of 10,000 jobs takes 12 ms, in which other submissions of the user wait. So
each process keeps an upper bound: a former count, and all tasks submitted since then. It counts
again if the bound is above the limit, or a minute old.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from django.conf import settings
from django.contrib.auth import get_user_model

from controlplane import clock
from controlplane.domain.jobs.submission import JobsRefused, PlannedJob
from controlplane.queries.jobs.submission import count_open_tasks_of, count_tasks_submitted_since
from controlplane.queries.sql import execute
from controlplane.spec import Fault

# A restore of the database may lose counted jobs, and draw their ids again.
BOUND_SECONDS = 60.0

_LOCK = "SELECT FROM auth_user WHERE id = %s FOR NO KEY UPDATE"


@dataclass(frozen=True, slots=True)
class _Bound:
    """An upper bound of the open tasks of a user, with all jobs up to the id `last_job`."""

    open_tasks: int
    last_job: int
    counted_at: float


_bounds: dict[int, _Bound] = {}


def check_cap(owner_id: int, jobs: Sequence[PlannedJob], *, is_binding: bool = True) -> None:
    """Check the user's limit of unfinished tasks with these jobs added. Raise JobsRefused.

    Lock the user unless `is_binding` is False (a dry run): two concurrent submissions could pass
    the check together.
    """
    if is_binding and not execute(_LOCK, [owner_id], prepare=True):
        raise get_user_model().DoesNotExist(f"user {owner_id} was deleted")
    limit = settings.CELLRUN.max_unfinished_tasks_per_user
    added = sum(map(_count_tasks, jobs))
    if is_binding and _find_bound(owner_id) + added <= limit:
        return
    open_tasks = _count(owner_id) if is_binding else count_open_tasks_of(owner_id).tasks
    for job in jobs:
        open_tasks += _count_tasks(job)
        if open_tasks > limit:
            field = "replicas" if job.is_short else "groups"
            owner = get_user_model().objects.get(pk=owner_id).get_username()
            text = f"would make {open_tasks} unfinished tasks of user {owner}, who may have {limit}"
            raise JobsRefused([(job.position, Fault("" if job.retry_of else field, text))])


def _count_tasks(job: PlannedJob) -> int:
    return sum(len(group.indices) for group in job.groups)


def _find_bound(owner_id: int) -> int:
    """Return the upper bound with the jobs submitted since; the caller holds the lock."""
    bound = _bounds.get(owner_id)
    if bound is None or not 0 <= clock.monotonic() - bound.counted_at < BOUND_SECONDS:
        return _count(owner_id)
    # Ids of jobs are drawn under the lock: no job of the user with a smaller id appears later.
    new = count_tasks_submitted_since(owner_id, bound.last_job)
    bound = _Bound(bound.open_tasks + new.tasks, new.last_job, bound.counted_at)
    _bounds[owner_id] = bound
    return bound.open_tasks


def _count(owner_id: int) -> int:
    found = count_open_tasks_of(owner_id)
    _bounds[owner_id] = _Bound(found.tasks, found.last_job, clock.monotonic())
    return found.tasks
