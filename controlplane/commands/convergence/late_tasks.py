"""Rules 1 to 5: end or change overdue tasks, each decided under the lock of its job."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controlplane import clock
from controlplane.commands.convergence.runner import RuleContext
from controlplane.commands.state.apply import apply
from controlplane.commands.state.transactions import for_each_batch
from controlplane.domain.convergence.task_rules import TaskRule
from controlplane.domain.state.effects import Effects
from controlplane.queries.convergence.late_tasks import DueTask, find_candidates, pick_candidates
from controlplane.queries.locks import lock_jobs
from controlplane.queries.task_facts import load_facts_of_tasks

# A rule begins no further page after this time, so that later rules run in the same tick.
SLICE_SECONDS = 2.0
# Pages without a change do not end the slice: otherwise tasks that always fail would block the
# tasks behind them. A failing job has ten pages at most.
PAGES_PER_TICK = 50


@dataclass(frozen=True, slots=True)
class EndLateTasks:
    """Applies `rule` to its candidates, page by page, in the order of task ids."""

    rule: TaskRule

    def __call__(self, context: RuleContext) -> Mapping[str, int]:
        """Return how many tasks changed."""
        changed, after, until = 0, 0, clock.monotonic() + SLICE_SECONDS
        for _ in range(PAGES_PER_TICK):
            found = find_candidates(self.rule.name, context.parameters, after=after)
            changed += apply_task_rule(self.rule, found, context)
            if len(found) < context.policy.page or (changed and clock.monotonic() >= until):
                break
            after = found[-1].task_id
        return {self.rule.name: changed}


def apply_task_rule(rule: TaskRule, candidates: Sequence[DueTask], context: RuleContext) -> int:
    """Apply the rule to each remaining candidate under its job's lock; return how many changed."""
    by_job: dict[int, list[int]] = {}
    for candidate in candidates:
        by_job.setdefault(candidate.job_id, []).append(candidate.task_id)

    def work(job_ids: Sequence[int]) -> int:
        jobs = lock_jobs(job_ids)
        # A report, an operator or a placement may have changed the tasks meanwhile.
        task_ids = [task_id for job_id in job_ids for task_id in by_job[job_id]]
        attempts = pick_candidates(rule.name, context.parameters, task_ids)
        changes = [
            rule.decide(facts, now=context.now)
            for facts in load_facts_of_tasks(list(attempts))
            if rule.is_due(facts, context.now)
            and (facts.attempt is None or facts.attempt.uid == attempts[facts.task_id])
        ]
        effects = Effects(changes=changes)
        return apply(effects, jobs=jobs, now=context.now, actor="convergence").changed

    return sum(for_each_batch(list(by_job), work, what=rule.name))
