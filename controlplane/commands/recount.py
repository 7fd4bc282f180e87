"""Deriving counts and job states again from the tasks, and mending what is not as it must be."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from controlplane.commands.batches import run_in_transaction
from controlplane.commands.dispatch import send_after_commit
from controlplane.commands.effects import apply_changes, write_counts
from controlplane.domain.recount import Counted, Difference, find_differences
from controlplane.queries.jobs_under_lock import load_groups, lock_jobs
from controlplane.queries.recount import count_tasks, find_page, find_undeleted

ACTOR = "recount"


@dataclass(frozen=True, slots=True)
class Recounted:
    """A page: which jobs were looked at, and what differed in them, by job."""

    job_ids: Sequence[int]
    differences: Sequence[Difference]


def recount_page(*, after: int, repair: bool, now: datetime) -> Recounted:
    """Look at the next jobs behind the job `after`, in one transaction; no jobs: that was all.

    With `repair`, what differs is mended. Whoever changes a task holds its job's lock, so nothing
    of these jobs moves while they are counted, and everything goes on between two pages.
    """
    job_ids = find_page(after)
    found: list[Difference] = []

    def work() -> None:
        jobs = lock_jobs(job_ids)
        known = find_undeleted(list(jobs))
        groups = load_groups(known)
        group_ids = [group.facts.group_id for listed in groups.values() for group in listed]
        counted = count_tasks(known, group_ids)
        found[:] = [
            difference
            for job_id in sorted(known)
            for difference in find_differences(
                jobs[job_id], groups.get(job_id, ()), counted, now=now
            )
        ]
        if repair and found:
            _mend(found, counted)
            again = sorted({difference.job_id for difference in found})
            send_after_commit(apply_changes([], jobs=jobs, now=now, actor=ACTOR, again=again))

    run_in_transaction(work)
    return Recounted(job_ids, found)


def _mend(differences: Sequence[Difference], counted: dict[int, Counted]) -> None:
    wrong = sorted({item.group_id for item in differences if item.group_id is not None})
    if wrong:
        write_counts({key: (counted[key].counts, counted[key].excused) for key in wrong})
