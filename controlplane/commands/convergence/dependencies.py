"""Rule 7: start groups and jobs whose dependencies came true, end those whose never will."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from controlplane.commands.convergence.job_pages import take_turn
from controlplane.commands.convergence.runner import RuleContext
from controlplane.commands.state.apply import apply
from controlplane.commands.state.transactions import for_each_batch
from controlplane.contract.states import TaskState
from controlplane.domain.convergence.endings import decide_hopeless
from controlplane.domain.state.effects import Effects, EndJob
from controlplane.domain.state.job_rollup import impossible_groups
from controlplane.domain.state.states import Reason
from controlplane.queries.convergence.dependencies import find_pending_of_groups
from controlplane.queries.jobs.dependencies import DependencyFacts, load_dependencies
from controlplane.queries.locks import load_groups, lock_jobs
from controlplane.queries.task_facts import load_facts_of_tasks


def follow(look: RuleContext) -> Mapping[str, int]:
    """Jobs that wait for other jobs, and groups that wait for groups."""
    counts = {}
    if "blocked_jobs" in look.due:
        blocked = take_turn("blocked_jobs", now=look.now)
        counts["unblocked"] = follow_dependencies(blocked.job_ids, now=look.now)
    if "waiting_jobs" in look.due:
        waiting = take_turn("waiting_jobs", now=look.now)
        counts["hopeless"] = end_hopeless(waiting.job_ids, now=look.now, page=look.policy.page)
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
