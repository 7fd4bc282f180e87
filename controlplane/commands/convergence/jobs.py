"""Rules 7 and 8: jobs start or end with others; ending jobs and gangs are worked off in pages."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import chain

from controlplane.commands.convergence.job_pages import JOBS_PER_TICK, give_back, take_turn
from controlplane.commands.convergence.runner import RuleContext
from controlplane.commands.jobs.cancel import PAGE, end_page
from controlplane.commands.state.apply import apply
from controlplane.commands.state.transactions import for_each_batch, run_in_transaction
from controlplane.contract.states import TaskState
from controlplane.domain.convergence.endings import decide_gang_requeue, decide_hopeless
from controlplane.domain.state.effects import Effects, EndJob
from controlplane.domain.state.job_rollup import impossible_groups
from controlplane.domain.state.states import ACTIVE, Reason
from controlplane.outbox import wakes
from controlplane.queries.convergence.jobs import find_pending_of_groups
from controlplane.queries.jobs.dependencies import (
    DependencyFacts,
    find_requeuing_page,
    load_dependencies,
    load_parents,
    load_stop_seconds,
)
from controlplane.queries.locks import load_groups, lock_jobs
from controlplane.queries.task_facts import load_facts_of_tasks

# Pages of all jobs in one tick, of each kind: a job has at most ten. Between two ticks the worker
# takes what else waits for it, so that no cascade holds up the clock's rules.
PAGES_PER_TICK = 50


def follow(context: RuleContext) -> Mapping[str, int]:
    """Jobs that wait for other jobs, and groups that wait for groups."""
    counts = {}
    if "blocked_jobs" in context.due:
        blocked = take_turn("blocked_jobs", now=context.now)
        counts["unblocked"] = follow_dependencies(blocked.job_ids, now=context.now)
    if "waiting_jobs" in context.due:
        waiting = take_turn("waiting_jobs", now=context.now)
        counts["hopeless"] = end_hopeless(
            waiting.job_ids, now=context.now, page=context.policy.page
        )
    return counts


def follow_dependencies(job_ids: Sequence[int], *, now: datetime) -> int:
    """Let the jobs start whose dependencies are all met, end those with one that failed; how many.

    A job that waits for something that can no longer come true ends KILLED, with that as reason.
    """

    def work(batch: Sequence[int]) -> int:
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
        effects = Effects(endings=endings, unblocked=unblocked)
        apply(effects, jobs=jobs, now=now, actor="convergence")
        return len(endings) + len(unblocked)

    return sum(for_each_batch(job_ids, work, what="dependencies of jobs"))


def end_hopeless(job_ids: Sequence[int], *, now: datetime, page: int) -> int:
    """Kill the tasks of groups whose dependency can no longer hold; how many."""

    def work(batch: Sequence[int]) -> int:
        jobs = lock_jobs(batch)
        groups = [
            group.group_id
            for listed in load_groups(batch).values()
            for group in impossible_groups({row.facts.name: row.facts for row in listed})
        ]
        task_ids = find_pending_of_groups(groups, page) if groups else []
        changes = [decide_hopeless(facts, now=now) for facts in load_facts_of_tasks(task_ids)]
        return apply(Effects(changes), jobs=jobs, now=now, actor="convergence").changed

    return sum(for_each_batch(list(job_ids), work, what="dependencies"))


def _in_vain(failed: DependencyFacts) -> str:
    return f"waited until job {failed.name} has {failed.until}, which can no longer be"


def go_on(context: RuleContext) -> Mapping[str, int]:
    """End children, requeue gangs and end tasks, as many as the time of the tick allows."""
    counts: dict[str, int] = {}
    if orphaned := _end_generations(context.now):
        counts["orphaned"] = orphaned
    if requeued := _work_in_pages("requeuing_jobs", requeue_page, context.now):
        counts["requeued"] = requeued
    if ended := _work_in_pages("ending_jobs", end_page, context.now):
        counts["ended"] = ended
    return counts


def _end_generations(now: datetime) -> int:
    """End children, and theirs; how many. What failed is not tried again in this tick."""
    total, failed = 0, set[int]()
    # Each round ends one generation, and the rest of the one before it.
    for _ in range(PAGES_PER_TICK):
        turn = take_turn("orphaned_jobs", now=now, but=failed)
        ended = end_children(turn.job_ids, now=now)
        failed |= set(turn.job_ids) - ended
        total += len(ended)
        if not ended or len(failed) >= JOBS_PER_TICK:
            return total
    wakes.wake_convergence()
    return total


def end_children(job_ids: Sequence[int], *, now: datetime) -> set[int]:
    """End jobs whose parent ended, or is ending, without success; return their ids (as in Iris).

    Their own children follow in the next round.
    """

    def work(batch: Sequence[int]) -> list[int]:
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
        apply(Effects(endings=endings), jobs=jobs, now=now, actor="convergence")
        return [ending.job_id for ending in endings]

    return set(chain.from_iterable(for_each_batch(job_ids, work, what="children")))


def requeue_page(job_id: int, *, now: datetime, page: int = PAGE) -> int:
    """Requeue up to a page of a gang's members; return how many, 0 when none is left."""

    def requeue() -> int:
        jobs = lock_jobs([job_id])
        task_ids = find_requeuing_page(job_id, page)
        graces = load_stop_seconds(job_id)
        changes = [
            decide_gang_requeue(facts, stop_seconds=graces[facts.group_id], now=now)
            for facts in load_facts_of_tasks(task_ids)
            if facts.state in ACTIVE
        ]
        effects = Effects(changes, derived=[job_id])
        return apply(effects, jobs=jobs, now=now, actor="convergence").changed

    return run_in_transaction(requeue)


def _work_in_pages(what: str, work: Callable[..., int], now: datetime) -> int:
    """Run `work(job_id, now=now)` on each job until it returns 0, oldest first; return the sum.

    The next tick, which is woken, takes what exceeds the pages of this one.
    """
    done, pages = 0, 0

    def do_page(job_ids: Sequence[int]) -> int:
        return sum(work(job_id, now=now) for job_id in job_ids)

    turn = take_turn(what, now=now)
    for place, job_id in enumerate(turn.job_ids):
        while pages < PAGES_PER_TICK:
            count = sum(for_each_batch([job_id], do_page, what=what))
            if not count:
                break
            done, pages = done + count, pages + 1
        else:
            give_back(turn, place, now=now)
            wakes.wake_convergence()
            break
    return done
