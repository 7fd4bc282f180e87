"""Diagnosis of work that is stuck or waits unusually long, with its owner and deadline."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from controlplane.contract.states import TaskState as S
from controlplane.domain.convergence.owners import Owner, OwnerFacts, find_owner

USUAL_SECONDS = 60.0
"""Seconds after which a situation is listed; the start of an attempt may take as long."""

TICK_LATE_SECONDS = 60.0
"""Seconds without a run after which a tick is late; an idle placement records one every 10 s."""


@dataclass(frozen=True, slots=True)
class DoctorEntry:
    """One line of the diagnosis.

    `acts`: when the owner acts, as text. `needs_person`: an operator must act. `count`: number of
    equal situations. `since`: start of the longest.
    """

    subject: str
    what: str
    since: datetime | None
    owner: str
    acts: str
    needs_person: bool = False
    count: int = 1


@dataclass(frozen=True, slots=True)
class OpenTask:
    """A task with the facts that determine its owner (`at`). `since`: start of its situation.

    `due_at`: when its owner acts; None if that depends on an event.
    """

    at: OwnerFacts
    since: datetime
    due_at: datetime | None = None
    is_cell_quarantined: bool = False


def judge_tasks(
    tasks: Iterable[OpenTask],
    *,
    now: datetime,
    interval: float,
    hold_until: datetime | None = None,
) -> list[DoctorEntry]:
    """Return the entries for tasks; tasks of one job in the same situation share an entry.

    `hold_until`: time before which no rule acts, because convergence is on hold.
    """
    entries: dict[tuple[int, str], DoctorEntry] = {}
    for task in tasks:
        owner = find_owner(task.at)
        if owner is None or not _is_unusual(task, owner, now):
            continue
        facts = task.at.facts
        due_at = task.due_at
        if due_at is not None and hold_until is not None:
            due_at = max(due_at, hold_until)
        acts, needs_person = _when(replace(task, due_at=due_at), owner, now, interval)
        subject = f"job {facts.job_id}, task {facts.task_id}"
        entry = DoctorEntry(subject, owner.what, task.since, owner.actor, acts, needs_person)
        known = entries.get((facts.job_id, owner.what))
        if known is not None:
            longest = min(known, entry, key=lambda item: item.since or now)
            needs_person |= known.needs_person
            entry = replace(longest, needs_person=needs_person, count=known.count + 1)
        entries[facts.job_id, owner.what] = entry
    return sorted(entries.values(), key=lambda finding: (not finding.needs_person, finding.subject))


def _is_unusual(task: OpenTask, owner: Owner, now: datetime) -> bool:
    if task.due_at is not None and task.due_at <= now:
        return True
    is_at_work = task.at.attempt is S.RUNNING and not owner.rule.startswith("attempts_of")
    return not is_at_work and (now - task.since).total_seconds() > USUAL_SECONDS


def _when(task: OpenTask, owner: Owner, now: datetime, interval: float) -> tuple[str, bool]:
    """Return when the owner acts, and whether an operator must act."""
    is_unconfirmed = owner.rule == "stuck_stops" and task.is_cell_quarantined
    if is_unconfirmed and task.due_at is not None:  # the quarantine may have another cause
        is_unconfirmed = task.due_at <= now
    if owner.rule == "held_attempts" or is_unconfirmed:
        return (
            "an operator must: `cellrun release-attempt`, once its container is certainly gone",
            True,
        )
    if owner.rule == "placement":
        return "each pass; declared: PENDING without a deadline", False
    if task.due_at is None:
        return owner.longest, False
    late = (now - task.due_at).total_seconds()
    if late > TICK_LATE_SECONDS:
        return f"overdue since {task.due_at:%H:%M:%S}: convergence did not act", True
    return describe_due(task.due_at, now=now, interval=interval), False


def describe_due(due_at: datetime, *, now: datetime, interval: float) -> str:
    """Describe when a rule acts that is due at `due_at`."""
    if due_at <= now:
        return f"in the next tick, within {interval:g} s"
    return f"at {due_at:%H:%M:%S}, in {(due_at - now).total_seconds():.0f} s"
