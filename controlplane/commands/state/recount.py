"""Deriving counts, flags and job states again, and mending what is not as it must be."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from controlplane.commands.state.apply import apply, mend_flag, write_counts
from controlplane.commands.state.apply_sql import MEND_FLAG
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.domain.integrity.recount import (
    Difference,
    TaskCounts,
    WrongFlag,
    find_differences,
    find_wrong_links,
    find_wrong_tasks,
    send_back,
)
from controlplane.domain.state.effects import Effects
from controlplane.domain.state.job_rollup import JobRow
from controlplane.queries.integrity.recount import (
    count_tasks,
    find_oddly_held,
    find_open_waits,
    find_page,
    find_unblocked,
    find_undeleted,
    find_unwatched,
)
from controlplane.queries.locks import load_groups, lock_jobs
from controlplane.queries.task_facts import load_facts_of_tasks

ACTOR = "recount"


@dataclass(frozen=True, slots=True)
class RecountPage:
    """A page: the recounted jobs, and the differences by job."""

    job_ids: Sequence[int]
    differences: Sequence[Difference]


def recount_page(*, after: int, repair: bool, now: datetime) -> RecountPage:
    """Recount the next jobs behind the job `after`; no jobs: that was the end."""
    job_ids = find_page(after)
    return RecountPage(job_ids, recount_jobs(job_ids, repair=repair, now=now))


def recount_jobs(job_ids: Sequence[int], *, repair: bool, now: datetime) -> list[Difference]:
    """Return the differences in the jobs, read in one transaction. With `repair`, repair them.

    Every change of a task needs its job's lock, so nothing of these jobs changes while they are
    counted, and other jobs are not blocked.
    """

    def work() -> list[Difference]:
        jobs = lock_jobs(job_ids)
        known = sorted(find_undeleted(list(jobs)))
        found = _find_flags(known)
        if repair and any(item.flag is WrongFlag.ADRIFT for item in found):
            _send_back(found, jobs, now)
            jobs = lock_jobs(job_ids)
        groups = load_groups(known)
        group_ids = [group.facts.group_id for listed in groups.values() for group in listed]
        counted = count_tasks(known, group_ids)
        for job_id in known:
            listed = groups.get(job_id, ())
            found.extend(find_differences(jobs[job_id], listed, counted, now=now))
        if repair and found:
            _mend(found, counted, now)
            again = sorted({difference.job_id for difference in found})
            jobs = {**jobs, **lock_jobs(again)}  # with the flags as they are now
            apply(Effects(derived=again), jobs=jobs, now=now, actor=ACTOR)
        return found

    return run_in_transaction(work) if job_ids else []


def _find_flags(job_ids: Sequence[int]) -> list[Difference]:
    return find_wrong_tasks(find_oddly_held(job_ids)) + find_wrong_links(
        unwatched=find_unwatched(job_ids),
        unblocked=find_unblocked(job_ids),
        waits=find_open_waits(job_ids),
    )


def _send_back(found: Sequence[Difference], jobs: dict[int, JobRow], now: datetime) -> None:
    """Tasks that are active and have no attempt."""
    adrift = [item.row_id for item in found if item.flag is WrongFlag.ADRIFT]
    changes = [send_back(facts, now=now) for facts in load_facts_of_tasks(adrift)]
    apply(Effects(changes), jobs=jobs, now=now, actor=ACTOR)


def _mend(differences: Sequence[Difference], counted: dict[int, TaskCounts], now: datetime) -> None:
    wrong = sorted({item.group_id for item in differences if item.group_id is not None})
    if wrong:
        write_counts({key: (counted[key].counts, counted[key].excused) for key in wrong})
    for flag in WrongFlag:
        row_ids = [item.row_id for item in differences if item.flag is flag]
        if row_ids and flag in MEND_FLAG:  # the others are states, or unknown
            mend_flag(flag, row_ids, now=now)
