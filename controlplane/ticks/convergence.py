"""The convergence tick: what is stuck, lost or overdue is ended, rule by rule, in bounded pages."""

import time
from datetime import datetime, timedelta

import structlog
from celery import shared_task
from django.conf import settings

from controlplane import clock
from controlplane.commands import convergence as commands
from controlplane.commands.cascades import CASCADES, run_cascades
from controlplane.commands.deletion import purge_jobs
from controlplane.commands.hearing import find_deaf_since, send_probes
from controlplane.commands.images import hold_images
from controlplane.commands.ticks import claim_turn, note_run, take_wake
from controlplane.domain.convergence.converge import TASK_RULES
from controlplane.domain.convergence.policy import Policy
from controlplane.queries.convergence import (
    find_candidates,
    find_due,
    list_jobs_with,
    list_silent_leases,
)
from controlplane.queries.ticks import TickFacts, load_tick

NAME = "convergence"
# Jobs looked at by one rule in one tick.
JOBS_PER_TICK = 500

log = structlog.get_logger(__name__)


@shared_task(name="controlplane.ticks.convergence")
def convergence(woken: bool = False) -> None:
    """What beat and wakes send."""
    take_wake(NAME)
    run(woken=woken)


def build_policy() -> Policy:
    """The installation's policy."""
    return Policy(
        interval=settings.CELLRUN.convergence_interval_seconds, lease=settings.CELLRUN.lease_seconds
    )


def run(*, woken: bool = False) -> dict[str, int]:
    """One tick; what each rule did. A wake only goes on with cascades; the clock's does all."""
    now, policy = clock.now(), build_policy()
    if woken:
        return run_cascades(find_due(now, None, policy, among=CASCADES), now=now, policy=policy)
    tick = load_tick(NAME)
    if not claim_turn(NAME, now=now, interval=policy.interval):
        return {}
    began = time.monotonic()
    counts, hold_until = _run_rules(tick, now, policy)
    counts["milliseconds"] = round((time.monotonic() - began) * 1000)
    note_run(NAME, started_at=now, finished_at=clock.now(), counts=counts, hold_until=hold_until)
    return counts


def _run_rules(
    tick: TickFacts, now: datetime, policy: Policy
) -> tuple[dict[str, int], datetime | None]:
    send_probes(now=now)
    hold_until = _hold_until(tick, now, policy)
    covered_at = load_tick("placement").covered_at
    counts: dict[str, int] = {}
    # Twice the heartbeat interval without a word is silence; less is chance.
    silent_since = now - timedelta(seconds=2 * settings.CELLRUN.heartbeat_seconds)
    commands.count_silence(now=now, silent_since=silent_since)
    due = find_due(now, covered_at, policy)
    if hold_until is None:
        if "silent_leases" in due:
            lost = commands.lose_cells(list_silent_leases(now), now=now, policy=policy)
            counts["cells_lost"] = len(lost)
            if lost:
                due.add("attempts_of_lost_cells")
        for rule in TASK_RULES:
            if rule.name in due:
                found = find_candidates(rule.name, now=now, covered_at=covered_at, policy=policy)
                counts[rule.name] = commands.apply_task_rule(rule, found, now=now)
        if "stuck_stops" in due:
            counts["cells_suspected"] = commands.suspect_cells(now=now, policy=policy)
        if "failing_cells" in due:
            counts["cells_avoided"] = commands.avoid_failing_cells(now=now, policy=policy)
        if "cleared_cells" in due:
            counts["cells_cleared"] = commands.clear_cells(now=now, policy=policy)
    if "images" in due:
        counts["held_by_images"] = hold_images(now=now)
    if "freed_attempts" in due:
        commands.clear_held(now=now)
    if "unsettled_jobs" in due:
        commands.roll_again(list_jobs_with("unsettled_jobs", JOBS_PER_TICK), now=now)
    # What the rules before left behind is looked for once more.
    due |= find_due(now, None, policy, among=(*CASCADES, "held_attempts", "deleted_jobs"))
    if "held_attempts" in due:
        commands.alert_held(now=now)
    counts |= run_cascades(due, now=now, policy=policy)
    if hold_until is None:
        deleted = list_jobs_with("deleted_jobs", JOBS_PER_TICK) if "deleted_jobs" in due else []
        purged = purge_jobs(deleted)  # without any, too: files may be left of earlier ones
        if deleted:
            counts["purged"] = purged
    return counts, hold_until


def _hold_until(tick: TickFacts, now: datetime, policy: Policy) -> datetime | None:
    """Until when rules 1 to 6 wait, because we ourselves were away or deaf; None: they need not."""
    gap = timedelta(seconds=policy.gap_intervals * policy.interval)
    was_away = tick.finished_at is None or now - tick.finished_at > gap
    if was_away or find_deaf_since(now=now, patience=gap):
        log.warning("listening_first", away=was_away)
        return now + timedelta(seconds=policy.lease)
    if tick.hold_until is not None and tick.hold_until > now:
        return tick.hold_until
    return None
