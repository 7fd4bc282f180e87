"""End tasks that validators have rejected because they can never be placed."""

from collections.abc import Sequence
from datetime import datetime

from controlplane.commands.state.apply import apply
from controlplane.commands.state.transactions import for_each_batch
from controlplane.domain.state.effects import Effects, RejectGroup
from controlplane.domain.state.states import Reason
from controlplane.domain.state.task_changes import ChangeCause, change_task
from controlplane.domain.state.transitions import Event
from controlplane.queries.convergence.jobs import find_pending_of_groups
from controlplane.queries.locks import load_groups, lock_jobs
from controlplane.queries.placement.snapshot import find_jobs_of_groups
from controlplane.queries.task_facts import load_facts_of_tasks

# Tasks of one transaction; the job ends with the first of them, and its other tasks with the job.
PAGE = 1_000


def reject(groups: Sequence[RejectGroup], *, now: datetime) -> int:
    """End the waiting tasks of the groups, and their jobs, UNSCHEDULABLE; return how many."""
    reasons = {item.group_id: str(item.reason["text"]) for item in groups}

    def work(batch: Sequence[int]) -> int:
        jobs = lock_jobs(batch)
        # Only groups of this batch: the tasks of a skipped job must not fill the page.
        groups = [
            group.facts.group_id
            for listed in load_groups(list(jobs)).values()
            for group in listed
            if group.facts.group_id in reasons
        ]
        tasks = load_facts_of_tasks(find_pending_of_groups(groups, PAGE))
        changes = [
            change_task(
                facts,
                Event.REJECTED,
                ChangeCause(
                    Reason.REJECTED,
                    message=reasons[facts.group_id],
                    failure_reason=f"can never be placed: {reasons[facts.group_id]}",
                ),
                now=now,
            )
            for facts in tasks
        ]
        return apply(Effects(changes), jobs=jobs, now=now, actor="placement").changed

    return sum(for_each_batch(find_jobs_of_groups(reasons), work, what="rejection"))
