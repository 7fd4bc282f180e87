"""What the end or the progress of one job means for others, and for the rest of its own gang."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Protocol

from controlplane.commands.batches import for_each_batch, run_in_transaction
from controlplane.commands.convergence import end_hopeless
from controlplane.commands.dispatch import send_after_commit
from controlplane.commands.effects import apply_changes
from controlplane.commands.endings import end_page
from controlplane.contract.states import TaskState
from controlplane.domain.convergence.endings import decide_bounced
from controlplane.domain.convergence.policy import Policy
from controlplane.domain.effects import EndJob
from controlplane.domain.states import ACTIVE, Reason
from controlplane.outbox import wakes
from controlplane.queries.cascades import (
    WaitsFor,
    find_bouncing_page,
    load_dependencies,
    load_parents,
    load_stop_seconds,
)
from controlplane.queries.convergence import list_jobs_with
from controlplane.queries.facts import load_facts_of_tasks
from controlplane.queries.jobs_under_lock import lock_jobs

PAGE = 1_000
# Jobs that one rule looks at in one tick, and pages of all of them: a job has at most ten. Between
# two ticks the worker takes what else waits for it, so that no cascade holds up the clock's rules.
JOBS_PER_TICK = 500
PAGES_PER_TICK = 50

# What a wake is about: the end or the progress of a job that concerns others, or the rest of it.
CASCADES = ("blocked_jobs", "waiting_jobs", "orphaned_jobs", "bouncing_jobs", "ending_jobs")


class Page(Protocol):
    """Works off one page of a job."""

    def __call__(self, job_id: int, *, now: datetime) -> int:
        """How much was done; 0: nothing is left."""


def run_cascades(due: Collection[str], *, now: datetime, policy: Policy) -> dict[str, int]:
    """Rules 7 and 8: what can no longer start, what ends with others, gangs that go back.

    `due`: those of `CASCADES` that have work. How much each did.
    """
    counts: dict[str, int] = {}
    if "blocked_jobs" in due:
        blocked = list_jobs_with("blocked_jobs", JOBS_PER_TICK)
        counts["unblocked"] = follow_dependencies(blocked, now=now)
    if "waiting_jobs" in due:
        waiting = list_jobs_with("waiting_jobs", JOBS_PER_TICK)
        counts["hopeless"] = end_hopeless(waiting, now=now, page=policy.page)
    # Each round ends one generation, and whom the one before it left over.
    while orphaned := list_jobs_with("orphaned_jobs", JOBS_PER_TICK):
        ended = end_children(orphaned, now=now)
        counts["orphaned"] = counts.get("orphaned", 0) + ended
        if not ended:
            break
    if bounced := _work_in_pages("bouncing_jobs", bounce_page, now):
        counts["bounced"] = bounced
    if ended := _work_in_pages("ending_jobs", end_page, now):
        counts["ended"] = ended
    return counts


def _work_in_pages(what: str, work: Page, now: datetime) -> int:
    """Do `work` on each of the jobs until nothing of it is left, oldest job first; how much.

    What is too much for one tick is left to the next, which is woken for it.
    """
    done, pages, count = 0, 0, 0

    def turn(job_ids: Sequence[int]) -> None:
        nonlocal count
        count = sum(work(job_id, now=now) for job_id in job_ids)

    for job_id in list_jobs_with(what, JOBS_PER_TICK):
        while pages < PAGES_PER_TICK:
            count = 0
            for_each_batch([job_id], turn, what=what)
            if not count:
                break
            done, pages = done + count, pages + 1
    if pages >= PAGES_PER_TICK:
        wakes.wake_convergence()
    return done


def follow_dependencies(job_ids: Sequence[int], *, now: datetime) -> int:
    """Let the jobs start whose dependencies are all met, end those with one that failed; how many.

    A job that waits for something that can no longer come true ends KILLED, with that as reason.
    """
    moved = 0

    def work(batch: Sequence[int]) -> None:
        nonlocal moved
        jobs = lock_jobs(batch)
        dependencies = load_dependencies(batch)
        endings, unblocked = [], []
        for job_id in jobs:
            waits = dependencies.get(job_id, [])
            failed = next((item for item in waits if item.is_failed), None)
            if failed is not None:
                reason = Reason.JOB_DEPENDENCY_FAILED
                endings.append(EndJob(job_id, TaskState.KILLED, reason, _in_vain(failed)))
            elif all(item.is_met for item in waits):
                unblocked.append(job_id)
        applied = apply_changes(
            [], jobs=jobs, now=now, actor="convergence", endings=endings, unblocked=unblocked
        )
        moved += len(endings) + len(unblocked)
        send_after_commit(applied)

    for_each_batch(job_ids, work, what="dependencies of jobs")
    return moved


def end_children(job_ids: Sequence[int], *, now: datetime) -> int:
    """End jobs whose parent has ended, or is ending, without success (Iris: recursive); how many.

    Their own children are found when it is their turn.
    """
    ended = 0

    def work(batch: Sequence[int]) -> None:
        nonlocal ended
        jobs = lock_jobs(batch)
        endings = [
            EndJob(
                child,
                TaskState.KILLED,
                Reason.PARENT_ENDED,
                f"its parent, job {parent} ({name}), ended",
            )
            for child, (parent, name) in load_parents(batch).items()
        ]
        applied = apply_changes([], jobs=jobs, now=now, actor="convergence", endings=endings)
        ended += len(endings)
        send_after_commit(applied)

    for_each_batch(job_ids, work, what="children")
    return ended


def bounce_page(job_id: int, *, now: datetime, page: int = PAGE) -> int:
    """Send up to a page of a gang's members back to wait; how many. 0: all have gone."""
    bounced = 0

    def bounce() -> None:
        nonlocal bounced
        jobs = lock_jobs([job_id])
        task_ids = find_bouncing_page(job_id, page)
        graces = load_stop_seconds(job_id)
        changes = [
            decide_bounced(facts, stop_seconds=graces[facts.group_id], now=now)
            for facts in load_facts_of_tasks(task_ids)
            if facts.state in ACTIVE
        ]
        applied = apply_changes(changes, jobs=jobs, now=now, actor="convergence", again=[job_id])
        bounced = applied.changed
        send_after_commit(applied)

    run_in_transaction(bounce)
    return bounced


def _in_vain(failed: WaitsFor) -> str:
    return f"waited until job {failed.name} has {failed.until}, which can no longer be"
