"""Decide what each due instant of a schedule starts: the catch-up rule, then the overlap rule."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from controlplane.domain.schedules.calendar import Calendar

LATE_SECONDS = 60.0
"""An instant that is processed later than that was missed, and the catch-up rule applies."""

MAX_CAUGHT_UP = 100
"""Missed instants that are caught up; older ones are not."""

MAX_WAITING = 100
"""Instants that wait for the end of earlier jobs."""


class CatchUp(StrEnum):
    """Which missed instants start a job: the last one, all, or none."""

    LATEST = "latest"
    ALL = "all"
    NONE = "none"


class Overlap(StrEnum):
    """What happens at an instant while a job of the schedule has not finished."""

    ALLOW = "allow"
    SKIP = "skip"
    REPLACE = "replace"
    QUEUE = "queue"


class Outcome(StrEnum):
    """What became of an instant."""

    STARTED = "started"
    WAITING = "waiting"
    SKIPPED = "skipped"
    MISSED = "missed"
    REFUSED = "refused"


NOT_FINISHED = "an earlier job has not finished"
TOO_MANY_WAIT = f"{MAX_WAITING} instants wait already"
REPLACED = "a later instant replaces it"


@dataclass(frozen=True, slots=True)
class Firing:
    """An instant with its outcome."""

    at: datetime
    outcome: Outcome
    text: str = ""


@dataclass(frozen=True, slots=True)
class FiringPlan:
    """The outcomes of the due instants. `replaces`: unfinished jobs are cancelled before."""

    firings: Sequence[Firing]
    next_at: datetime | None
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class ScheduleFacts:
    """A schedule whose instant `next_at` is due. `waiting`: instants that wait in its queue."""

    calendar: Calendar
    catch_up: CatchUp
    overlap: Overlap
    next_at: datetime
    has_open_job: bool = False
    waiting: int = 0


def plan_firings(facts: ScheduleFacts, *, now: datetime) -> FiringPlan:
    """Return the outcomes of all instants from `next_at` to `now`."""
    due = facts.calendar.last_until(now, since=facts.next_at, most=MAX_CAUGHT_UP)
    chosen = _catch_up(facts.catch_up, due, now)
    firings = []
    if chosen[:1] != [facts.next_at]:
        until = chosen[0] if chosen else now
        text = f"no process fired the instants before {until:%Y-%m-%dT%H:%M:%SZ}"
        firings.append(Firing(facts.next_at, Outcome.MISSED, text))
    firings += _overlap(facts, chosen)
    replaces = facts.overlap is Overlap.REPLACE and facts.has_open_job and bool(chosen)
    return FiringPlan(firings, facts.calendar.next_after(now), replaces)


def _catch_up(rule: CatchUp, due: Sequence[datetime], now: datetime) -> list[datetime]:
    timely = [at for at in due if now - at <= timedelta(seconds=LATE_SECONDS)]
    if rule is CatchUp.ALL:
        return list(due)
    if rule is CatchUp.LATEST and not timely:
        return list(due[-1:])
    return timely


def _overlap(facts: ScheduleFacts, chosen: Sequence[datetime]) -> list[Firing]:
    match facts.overlap:
        case Overlap.SKIP:
            first = 0 if facts.has_open_job else 1
            skipped = [Firing(at, Outcome.SKIPPED, NOT_FINISHED) for at in chosen[first:]]
            return _start(chosen[:first]) + skipped
        case Overlap.REPLACE:
            former = [Firing(at, Outcome.SKIPPED, REPLACED) for at in chosen[:-1]]
            return former + _start(chosen[-1:])
        case Overlap.QUEUE:
            first = 0 if facts.has_open_job or facts.waiting else 1
            full = first + max(0, MAX_WAITING - facts.waiting)
            waiting = [Firing(at, Outcome.WAITING) for at in chosen[first:full]]
            skipped = [Firing(at, Outcome.SKIPPED, TOO_MANY_WAIT) for at in chosen[full:]]
            return _start(chosen[:first]) + waiting + skipped
        case Overlap.ALLOW:
            return _start(chosen)


def _start(instants: Sequence[datetime]) -> list[Firing]:
    return [Firing(at, Outcome.STARTED) for at in instants]
