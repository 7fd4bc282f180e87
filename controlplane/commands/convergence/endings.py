"""Rule 8: end jobs with their descendants, and requeue gangs, page by page."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from itertools import chain

from controlplane.commands.convergence.job_pages import JOBS_PER_TICK, give_back, take_turn
from controlplane.commands.convergence.runner import RuleContext
from controlplane.commands.jobs.cancel import PAGE, end_page
from controlplane.commands.state.apply import apply
from controlplane.commands.state.transactions import for_each_batch, run_in_transaction
from controlplane.contract.states import TaskState
from controlplane.domain.convergence.endings import decide_bounced
from controlplane.domain.state.effects import Effects, EndJob
from controlplane.domain.state.states import ACTIVE, Reason
from controlplane.outbox import wakes
from controlplane.queries.jobs.dependencies import (
    find_bouncing_page,
    load_parents,
    load_stop_seconds,
)
from controlplane.queries.locks import lock_jobs
from controlplane.queries.task_facts import load_facts_of_tasks

# Pages of all jobs in one tick, of each kind: a job has at most ten. Between two ticks the worker
# takes what else waits for it, so that no cascade holds up the clock's rules.
PAGES_PER_TICK = 50


def go_on(look: RuleContext) -> Mapping[str, int]:
    """End children, bounce gangs, end tasks: as far as this tick comes."""
    counts: dict[str, int] = {}
    if orphaned := _end_generations(look.now):
        counts["orphaned"] = orphaned
    if bounced := _work_in_pages("bouncing_jobs", bounce_page, look.now):
        counts["bounced"] = bounced
    if ended := _work_in_pages("ending_jobs", end_page, look.now):
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


def bounce_page(job_id: int, *, now: datetime, page: int = PAGE) -> int:
    """Requeue up to a page of a gang's members; return how many, 0 when none is left."""

    def requeue() -> int:
        jobs = lock_jobs([job_id])
        task_ids = find_bouncing_page(job_id, page)
        graces = load_stop_seconds(job_id)
        changes = [
            decide_bounced(facts, stop_seconds=graces[facts.group_id], now=now)
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
