"""The retention tick: continue the deletion of convergence in slices."""

from datetime import datetime

from celery import shared_task

from controlplane import clock
from controlplane.commands.convergence.rules import RULES
from controlplane.commands.convergence.runner import Memory, RuleRunner
from controlplane.domain.convergence.policy import Policy
from controlplane.outbox.wakes import take_wake
from controlplane.queries.policy import load_policy
from controlplane.queries.ticks import TickFacts, load_tick
from controlplane.ticks import convergence

NAME = "retention"


@shared_task(name="controlplane.ticks.retention")
def retention(_woken: bool = False) -> None:
    """Run the tick; rule 11 sends this task when its time limit is reached."""
    take_wake(NAME)
    run(memory=convergence.convergence.memory)


def run(*, memory: Memory | None = None) -> dict[str, int]:
    """Run one slice of each step of rule 11, unless convergence suspends it; return counts.

    `memory`: that of convergence in this process; None if it has none yet.
    """
    now, policy = clock.now(), load_policy()
    if _is_suspended(load_tick(convergence.NAME), now, policy):
        return {}
    runner = RuleRunner(
        [rule for rule in RULES if rule.number == 11], now, policy, memory=memory or Memory()
    )
    runner.run()
    return dict(runner.counts)


def _is_suspended(tick: TickFacts, now: datetime, policy: Policy) -> bool:
    """Return whether rules are suspended after a gap, or will be at the next periodic tick."""
    was_away = tick.finished_at is None or abs(now - tick.finished_at) > policy.gap
    return was_away or (tick.hold_until is not None and tick.hold_until > now)
