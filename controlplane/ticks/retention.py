"""Continue, slice by slice, the deletion for which a tick of convergence had no time."""

from datetime import datetime, timedelta

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
    """What rule 11 sends when its time was over."""
    take_wake(NAME)
    run(memory=convergence.convergence.memory)


def run(*, memory: Memory | None = None) -> dict[str, int]:
    """Run one slice of each step of rule 11; return what they did. Only while convergence does so.

    A step that fails ends here, and the next tick of the clock raises its alert. `memory`: that of
    convergence in this process; None: it has none yet.
    """
    now, policy = clock.now(), load_policy()
    if _is_listening(load_tick(convergence.NAME), now, policy):
        return {}
    course = RuleRunner(
        [rule for rule in RULES if rule.number == 11], now, policy, memory=memory or Memory()
    )
    course.run()
    return dict(course.counts)


def _is_listening(tick: TickFacts, now: datetime, policy: Policy) -> bool:
    """Whether rules wait, after a gap of our own, or will as soon as the clock's tick runs."""
    gap = timedelta(seconds=policy.gap_intervals * policy.interval)
    was_away = tick.finished_at is None or abs(now - tick.finished_at) > gap
    return was_away or (tick.hold_until is not None and tick.hold_until > now)
