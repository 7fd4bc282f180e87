"""Evictions: stop victims and reserve their capacity for the tasks that preempt them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

import structlog

from controlplane.commands.state.apply import apply
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.domain.placement.preemption.preempt import Eviction
from controlplane.domain.state.effects import ChangeTask, Effects, NominateTasks
from controlplane.domain.state.facts import TaskFacts
from controlplane.domain.state.job_rollup import JobRow
from controlplane.domain.state.states import ACTIVE, Reason
from controlplane.domain.state.task_changes import ChangeCause, change_task
from controlplane.domain.state.transitions import Event
from controlplane.queries.locks import lock_jobs
from controlplane.queries.placement.running_attempts import count_without_room
from controlplane.queries.task_facts import load_facts_of_tasks

log = structlog.get_logger(__name__)


def evict(evictions: Sequence[Eviction], *, now: datetime) -> int:
    """Evict the victims and nominate the preempting tasks; return how many were evicted.

    All in one transaction. Skip victims that ended meanwhile, and evictions for a job that is
    ending.
    """

    def work() -> int:
        victims = {task_id for eviction in evictions for task_id in eviction.victims}
        facts = load_facts_of_tasks(sorted(victims))
        jobs = lock_jobs({item.job_id for item in facts} | {item.need.job_id for item in evictions})
        due = _still_due(evictions, jobs, now)
        eviction_of = {task_id: eviction for eviction in due for task_id in eviction.victims}
        # Load them again under the locks.
        facts = [item for item in load_facts_of_tasks(sorted(eviction_of)) if item.state in ACTIVE]
        changes = [_preempt(item, eviction_of[item.task_id], now) for item in facts]
        nominations = [
            NominateTasks(group_id, shapes[group_id], cell_id, count, eviction.until)
            for eviction, shapes in ((eviction, eviction.shapes()) for eviction in due)
            for group_id, cell_id, count in eviction.places()
        ]
        effects = Effects(changes, nominations=nominations)
        return apply(effects, jobs=jobs, now=now, actor="placement").changed

    done = run_in_transaction(work)
    if done:
        log.info("preempted", tasks=done, preemptors=sum(item.need.tasks for item in evictions))
    return done


def _still_due(
    evictions: Sequence[Eviction], jobs: Mapping[int, JobRow], now: datetime
) -> list[Eviction]:
    """Return the evictions whose tasks still wait without a concurrent eviction."""
    left = count_without_room({group for item in evictions for group in item.group_ids}, now=now)
    due = []
    for item in evictions:
        job, wanted = jobs.get(item.need.job_id), Counter[tuple[int, int]]()
        shapes = item.shapes()
        for group_id, _, count in item.places():
            wanted[group_id, shapes[group_id]] += count
        is_open = job is not None and job.ending_as is None  # an ended job has no waiting task
        if is_open and all(left.get(row, 0) >= count for row, count in wanted.items()):
            due.append(item)
            for row, count in wanted.items():
                left[row] -= count
    return due


def _preempt(facts: TaskFacts, eviction: Eviction, now: datetime) -> ChangeTask:
    need = eviction.need
    message = f"made room for job {need.job_id} ({need.shape.band.name.lower()})"
    cause = ChangeCause(Reason.PREEMPTED, message=message)
    return change_task(facts, Event.PREEMPTED, cause, now=now)
