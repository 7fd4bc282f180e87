"""The history of a job, a task or an attempt as a timeline with reasons and actors."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

from django.utils.safestring import SafeString

from controlplane import clock
from controlplane.admin.badges import instant, length, page_link, state_badge
from controlplane.admin.base import Section
from controlplane.domain.state.states import COLOURS, TERMINAL
from controlplane.domain.timeline import Change, TimelineEntry
from controlplane.models import Task
from controlplane.queries.views.history import (
    HistoryPage,
    find_attempt_history,
    find_job_history,
    find_task_history,
)

# A job of 10,000 tasks has 40,000 changes: its page shows the newest entries.
ENTRIES = 100
# Of an entry that is unfolded; the API has them all.
UNFOLDED = 25
# Parts of 10,000 changes; together they hold the whole history of most jobs of 10,000 tasks.
_MORE_PARTS = 4
_NEUTRAL = "#57606a"


@dataclass(frozen=True, slots=True)
class TimelineLine:
    """One entry as it is drawn. `names_tasks`: on the page of a job, which has several."""

    entry: TimelineEntry
    names_tasks: bool
    now: datetime

    @property
    def colour(self) -> str:
        """Of the dot."""
        state = self.entry.newest.to_state or self.entry.newest.attempt_state
        return COLOURS[state] if state else _NEUTRAL

    @property
    def badges(self) -> list[SafeString]:
        """The states it went through; of the attempt alone when its task did not move."""
        newest = self.entry.newest
        if newest.enters:
            return [state_badge(state) for state in (newest.from_state, newest.to_state) if state]
        return [state_badge(newest.attempt_state)] if newest.attempt_state else []

    @property
    def subject(self) -> SafeString | str:
        """Whose change it is, or how many there were."""
        count, tasks = self.entry.count, self.entry.tasks
        if count == 1:
            return _subject(self.entry.newest) if self.names_tasks else ""
        if tasks < 2:
            name = self.entry.newest.task_name if self.names_tasks else None
            return f"{name}, {count} times" if name else f"{count} times"
        return f"{tasks} tasks" if tasks == count else f"{tasks} tasks, {count} times"

    @property
    def when(self) -> SafeString | str:
        """When it happened first."""
        return instant(self.entry.first_at)

    @property
    def until(self) -> SafeString | str:
        """When it happened last, if that was seconds later."""
        first, last = self.entry.first_at, self.entry.last_at
        return instant(last) if (last - first).total_seconds() >= 1 else ""

    @property
    def stay(self) -> str:
        """How long it stayed in the state it entered."""
        if self.entry.count == 1:
            return _stay(self.entry.newest, self.now)
        if self.entry.seconds is None or self.entry.longest_seconds is None:
            return ""
        longest = length(self.entry.longest_seconds)
        return f"{length(self.entry.seconds)} in all, {longest} at most"

    @property
    def place(self) -> str:
        """Return the cell, unless the actor of the row is the cell itself."""
        cell = self.entry.shared(lambda change: change.cell)
        return str(cell) if cell and cell != self.entry.shown_actor else ""

    @property
    def rows(self) -> Sequence[tuple[Any, ...]]:
        """What it unfolds to, oldest first; of very many the newest."""
        if self.entry.count == 1:
            return ()
        return [self._row(change) for change in reversed(self.entry.changes[:UNFOLDED])]

    @property
    def hidden(self) -> int:
        """How many more there are than it unfolds to."""
        return max(0, self.entry.count - UNFOLDED)

    def _row(self, change: Change) -> tuple[Any, ...]:
        subject = _subject(change) if self.names_tasks else _attempt(change)
        stay = _stay(change, self.now)
        return instant(change.at), subject, change.cell or "", change.message, stay


@dataclass(frozen=True, slots=True)
class Timeline(Section):
    """The section of a page."""

    template: ClassVar[str] = "controlplane/section_timeline.html"
    lines: Sequence[TimelineLine] = ()


def task_timeline(task: Task) -> Timeline:
    """A task's history, from its submission on (its newest entries, if there are very many)."""
    return _timeline(find_task_history(task.pk, limit=ENTRIES))


def attempt_timeline(uid: UUID) -> Timeline:
    """An attempt's part of it; also where its job is deleted, since it may still hold a cell."""
    return _timeline(find_attempt_history(uid, limit=ENTRIES, though_deleted=True))


def job_timeline(job_id: int) -> Timeline:
    """The newest entries of a job and its tasks, oldest first."""
    part = find_job_history(job_id, limit=ENTRIES)
    entries, following = list(part.entries), part.following
    # A part is short where its entries are of thousands of tasks each.
    for _ in range(_MORE_PARTS):
        if following is None or len(entries) >= ENTRIES // 2:
            break
        part = find_job_history(job_id, before=following, limit=ENTRIES - len(entries))
        entries, following = [*entries, *part.entries], part.following
    return _timeline(HistoryPage(entries, following), names_tasks=True)


def _timeline(part: HistoryPage, *, names_tasks: bool = False) -> Timeline:
    now = clock.now()
    lines = [TimelineLine(entry, names_tasks, now) for entry in reversed(part.entries)]
    title = "History" if part.following is None else f"History (its newest {len(lines)} entries)"
    return Timeline(title, lines=lines)


def _subject(change: Change) -> SafeString | str:
    if change.task_id is None:
        return "job"
    return page_link("task", change.task_id, change.task_name or f"task {change.task_id}")


def _attempt(change: Change) -> SafeString | str:
    if change.attempt_number is None:
        return ""
    return page_link("attempt", change.attempt_uid, f"attempt {change.attempt_number}")


def _stay(change: Change, now: datetime) -> str:
    """How long; of a state that time alone does not end nothing, of an open one so far."""
    if change.seconds is not None:
        return length(change.seconds)
    if not change.enters or change.to_state in TERMINAL:
        return ""
    return f"{length(max(0.0, (now - change.at).total_seconds()))} so far"
