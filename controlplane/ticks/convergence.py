"""The convergence tick: handle stuck, lost and overdue work, rule by rule, in bounded pages."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import structlog
from celery import Task, shared_task
from django.conf import settings

from controlplane import clock
from controlplane.commands.cells.probes import ProbeDelivery, is_deaf, send_probes
from controlplane.commands.convergence.cells import count_silence
from controlplane.commands.convergence.rules import RULES
from controlplane.commands.convergence.runner import Memory, RuleRunner
from controlplane.commands.retention.free_space import watch_free_space
from controlplane.commands.state.tick_alerts import GAP, TickAlerts
from controlplane.commands.state.tick_runs import claim_turn, note_hold, note_run
from controlplane.domain.convergence.policy import Policy
from controlplane.outbox.wakes import take_wake
from controlplane.queries.policy import load_policy
from controlplane.queries.ticks import TickFacts, load_silence

NAME = "convergence"

log = structlog.get_logger(__name__)


class ConvergenceTask(Task):
    """The Celery task, one instance per process; it owns the memory of the process."""

    def __init__(self) -> None:
        self.memory = Memory()


@shared_task(name="controlplane.ticks.convergence", base=ConvergenceTask, bind=True)
def convergence(self: ConvergenceTask, woken: bool = False) -> None:
    """Run the tick; beat and wakes send this task."""
    take_wake(NAME)
    run(woken=woken, memory=self.memory)


def run(*, woken: bool = False, memory: Memory | None = None) -> dict[str, int]:
    """Run one tick; return counts of what the rules did.

    A wake only continues cascades; a periodic tick runs all rules. `memory`: of this process; None
    if the tick is its first.
    """
    now, policy = clock.now(), load_policy()
    memory = memory or Memory()
    if woken:
        runner = RuleRunner([rule for rule in RULES if rule.on_wake], now, policy, memory=memory)
        runner.run()
        return dict(runner.counts)
    ticks = claim_turn(NAME, "placement", "callbacks", now=now, interval=policy.interval)
    if ticks is None:
        return {}
    tick, placement, callbacks = ticks
    deliveries = send_probes(now=now)
    hold_until = _hold_until(tick, deliveries, memory.alerts, now, policy)
    # Less than two heartbeat intervals without a message is normal jitter.
    silent_since = now - timedelta(seconds=2 * settings.CELLRUN.heartbeat_seconds)
    rules = [rule for rule in RULES if hold_until is None or not rule.waits]
    runner = RuleRunner(rules, now, policy, placement.covered_at, memory)
    silent = runner.guard("silence", lambda: count_silence(now=now, silent_since=silent_since))
    runner.guard("free_space", lambda: watch_free_space(memory.alerts, now=now))
    runner.guard("watch", lambda: _watch_others(placement, callbacks, memory.alerts, now))
    runner.run()
    # After the rules: cells that they declared LOST have their own alerts.
    runner.guard("cells", lambda: _watch_cells(silent, memory.alerts, now))
    note_run(
        NAME,
        started_at=now,
        finished_at=clock.now(),
        counts=runner.counts,
        phases=runner.phases,
        lag_seconds=tick.lag(now, policy.interval),
        hold_until=hold_until,
        is_claimed=True,
    )
    return dict(runner.counts)


def _watch_others(
    placement: TickFacts, callbacks: TickFacts, alerts: TickAlerts, now: datetime
) -> None:
    alerts.watch_tick("placement", placement, now=now)
    alerts.watch_tick("callbacks", callbacks, now=now)


def _watch_cells(silent: int | None, alerts: TickAlerts, now: datetime) -> None:
    # Without a silent cell, there is none of which the last message could be old.
    cells, last_message_at = (0, None) if silent == 0 else load_silence(lost=False)
    alerts.watch_cells(cells, last_message_at, now=now)


def _hold_until(
    tick: TickFacts,
    deliveries: Sequence[ProbeDelivery],
    alerts: TickAlerts,
    now: datetime,
    policy: Policy,
) -> datetime | None:
    """Return until when some rules wait after a gap of the control plane; None without a gap."""
    gap = policy.gap
    # A clock that was set forward or back is a gap of unknown length.
    was_away = tick.finished_at is None or abs(now - tick.finished_at) > gap
    if was_away or is_deaf(deliveries, now=now, policy=policy):
        log.warning("rules_wait_after_gap", away=was_away)
        hold_until = now + timedelta(seconds=policy.lease)
        note_hold(NAME, started_at=now, hold_until=hold_until)
        if tick.finished_at is not None:  # the very first run follows no gap
            alerts.raise_gap(NAME, tick.finished_at if was_away else None, now=now)
        return hold_until
    if tick.hold_until is not None and tick.hold_until > now:
        return tick.hold_until
    # The alert may be open if the last run of the tick suspended rules.
    alerts.clear_alert(GAP, NAME, now=now, was_open=tick.hold_until is not None)
    return None
