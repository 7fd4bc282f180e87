"""Decide what each due instant of a schedule starts: the catch-up rule, then the overlap rule."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
REFUSED_BEFORE = "an earlier instant was due at the same time, and its job was refused"
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
    """The outcomes of the due instants. `replaces`: unfinished jobs are cancelled before.

    `has_open_job`: a job from before these instants has not finished.
    """

    firings: Sequence[Firing]
    next_at: datetime | None
    replaces: bool = False
    has_open_job: bool = False

    def outcomes(self, refused: Collection[datetime]) -> list[Firing]:
        """Return the firings if the jobs of the instants `refused` were refused."""
        started = {it.at for it in self.firings if it.outcome is Outcome.STARTED}
        if self.has_open_job or started - {*refused}:
            return [*self.firings]
        return [
            replace(it, text=REFUSED_BEFORE) if it.text == NOT_FINISHED else it
            for it in self.firings
        ]


@dataclass(frozen=True, slots=True)
class ScheduleFacts:
    """A schedule whose instant `next_at` is due. `waiting`: instants that wait in its queue.

    `submitted`: due instants whose jobs exist, since a process died before it recorded them, and
    whether the job is unfinished.
    """

    calendar: Calendar
    catch_up: CatchUp
    overlap: Overlap
    next_at: datetime
    has_open_job: bool = False
    waiting: int = 0
    submitted: Mapping[datetime, bool] = field(default_factory=dict)


def list_due_instants(calendar: Calendar, next_at: datetime, *, now: datetime) -> list[datetime]:
    """Return the due instants; of many the last ones."""
    return calendar.last_until(now, since=next_at, most=MAX_CAUGHT_UP)


def plan_firings(facts: ScheduleFacts, *, now: datetime) -> FiringPlan:
    """Return the outcomes of all instants from `next_at` to `now`."""
    due = list_due_instants(facts.calendar, facts.next_at, now=now)
    chosen = sorted({*_catch_up(facts.catch_up, due, now), *facts.submitted})
    former = [is_open for at, is_open in facts.submitted.items() if at != chosen[-1]]
    firings = [*_missed([facts.next_at, *due], chosen, now), *_overlap(facts, chosen)]
    has_open_job = facts.has_open_job or any(former)
    replaces = facts.overlap is Overlap.REPLACE and has_open_job and bool(chosen)
    firings.sort(key=lambda firing: firing.at)
    is_open = facts.has_open_job or any(facts.submitted.values())
    return FiringPlan(firings, facts.calendar.next_after(now), replaces, is_open)


def _missed(due: Sequence[datetime], chosen: Collection[datetime], now: datetime) -> list[Firing]:
    """Return the first instant of each row of instants that start nothing."""
    found = []
    before = None
    for at in due:
        if at not in chosen and (before is None or before in chosen):
            until = min((later for later in chosen if later > at), default=now)
            text = f"no process fired the instants before {until:%Y-%m-%dT%H:%M:%SZ}"
            found.append(Firing(at, Outcome.MISSED, text))
        before = at
    return found


def _catch_up(rule: CatchUp, due: Sequence[datetime], now: datetime) -> list[datetime]:
    timely = [at for at in due if now - at <= timedelta(seconds=LATE_SECONDS)]
    if rule is CatchUp.ALL:
        return list(due)
    if rule is CatchUp.LATEST and not timely:
        return list(due[-1:])
    return timely


def _overlap(facts: ScheduleFacts, chosen: Sequence[datetime]) -> list[Firing]:
    known = [at for at in chosen if at in facts.submitted]
    has_open_job = facts.has_open_job or any(facts.submitted.values())
    if facts.overlap is Overlap.REPLACE:
        started = {*known, *chosen[-1:]}
        former = [Firing(at, Outcome.SKIPPED, REPLACED) for at in chosen if at not in started]
        return former + _start(sorted(started))
    new = [at for at in chosen if at not in facts.submitted]
    return _start(known) + _overlap_new(facts, new, has_open_job)


def _overlap_new(
    facts: ScheduleFacts, chosen: Sequence[datetime], has_open_job: bool
) -> list[Firing]:
    match facts.overlap:
        case Overlap.SKIP:
            first = 0 if has_open_job else 1
            skipped = [Firing(at, Outcome.SKIPPED, NOT_FINISHED) for at in chosen[first:]]
            return _start(chosen[:first]) + skipped
        case Overlap.QUEUE:
            first = 0 if has_open_job or facts.waiting else 1
            full = first + max(0, MAX_WAITING - facts.waiting)
            waiting = [Firing(at, Outcome.WAITING) for at in chosen[first:full]]
            skipped = [Firing(at, Outcome.SKIPPED, TOO_MANY_WAIT) for at in chosen[full:]]
            return _start(chosen[:first]) + waiting + skipped
        case _:
            return _start(chosen)


def _start(instants: Sequence[datetime]) -> list[Firing]:
    return [Firing(at, Outcome.STARTED) for at in instants]
