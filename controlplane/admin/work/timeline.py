"""Render the history of a job, task or attempt as a timeline with reasons and actors."""

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
    find_history_without_tasks,
    find_job_history,
    find_task_history,
)

# Entries on a page; a job of 10,000 tasks has 40,000 changes.
ENTRIES = 100
# Rows of an expanded entry; the API returns all.
UNFOLDED = 25
# Changes that the page of a job reads: each 1,000 take about 10 ms.
_MOST_READ = 1_000
# Entries of the job itself that follow them.
_OLDER = 20
_NEUTRAL = "#57606a"


@dataclass(frozen=True, slots=True)
class TimelineLine:
    """One entry as displayed. `names_tasks`: whether to name the tasks, as on a job's page."""

    entry: TimelineEntry
    names_tasks: bool
    now: datetime

    @property
    def colour(self) -> str:
        """The colour of the dot."""
        state = self.entry.newest.to_state or self.entry.newest.attempt_state
        return COLOURS[state] if state else _NEUTRAL

    @property
    def badges(self) -> list[SafeString]:
        """The states before and after; the attempt's state if its task did not change state."""
        newest = self.entry.newest
        if newest.enters:
            return [state_badge(state) for state in (newest.from_state, newest.to_state) if state]
        return [state_badge(newest.attempt_state)] if newest.attempt_state else []

    @property
    def subject(self) -> SafeString | str:
        """The task that changed, or the numbers of tasks and changes."""
        count, tasks = self.entry.count, self.entry.tasks
        if count == 1:
            return _subject(self.entry.newest) if self.names_tasks else ""
        if tasks < 2:
            name = self.entry.newest.task_name if self.names_tasks else None
            return f"{name}, {count} times" if name else f"{count} times"
        return f"{tasks} tasks" if tasks == count else f"{tasks} tasks, {count} times"

    @property
    def when(self) -> SafeString | str:
        """The time of the first change."""
        return instant(self.entry.first_at)

    @property
    def until(self) -> SafeString | str:
        """The time of the last change, if at least a second after the first."""
        first, last = self.entry.first_at, self.entry.last_at
        return instant(last) if (last - first).total_seconds() >= 1 else ""

    @property
    def stay(self) -> str:
        """The time spent in the entered state."""
        if self.entry.count == 1:
            return _stay(self.entry.newest, self.now)
        if self.entry.seconds is None or self.entry.longest_seconds is None:
            return ""
        longest = length(self.entry.longest_seconds)
        return f"{length(self.entry.seconds)} in total, {longest} at most"

    @property
    def place(self) -> str:
        """The cell, unless the actor is the cell itself."""
        cell = self.entry.shared(lambda change: change.cell)
        return str(cell) if cell and cell != self.entry.shown_actor else ""

    @property
    def rows(self) -> Sequence[tuple[Any, ...]]:
        """The expanded changes, oldest first; at most the newest UNFOLDED ones."""
        if self.entry.count == 1:
            return ()
        return [self._row(change) for change in reversed(self.entry.changes[:UNFOLDED])]

    @property
    def hidden(self) -> int:
        """The number of changes that `rows` leaves out."""
        return max(0, self.entry.count - UNFOLDED)

    def _row(self, change: Change) -> tuple[Any, ...]:
        subject = _subject(change) if self.names_tasks else _attempt(change)
        stay = _stay(change, self.now)
        return instant(change.at), subject, change.cell or "", change.message, stay


@dataclass(frozen=True, slots=True)
class Timeline(Section):
    """The history section of a page."""

    template: ClassVar[str] = "controlplane/section_timeline.html"
    lines: Sequence[TimelineLine] = ()


def task_timeline(task: Task) -> Timeline:
    """Return the newest entries of a task's history, which begins with its submission."""
    return _timeline(find_task_history(task.pk, limit=ENTRIES))


def attempt_timeline(uid: UUID) -> Timeline:
    """Return an attempt's history, also of a deleted job: the attempt may still hold a cell."""
    return _timeline(find_attempt_history(uid, limit=ENTRIES, though_deleted=True))


def job_timeline(job_id: int) -> Timeline:
    """Return the newest entries of a job and its tasks, oldest first.

    Of older ones, those of the job itself: of 10,000 tasks the newest entries may merge all changes
    that one page reads.
    """
    part = find_job_history(job_id, limit=ENTRIES, most_read=_MOST_READ)
    if part.following is None:
        return _timeline(part, names_tasks=True)
    older = find_history_without_tasks(job_id, before=part.following, limit=_OLDER)
    title = f"History (the newest {len(part.entries)} entries, and older ones of the job)"
    return _timeline(HistoryPage([*part.entries, *older.entries], None), title, names_tasks=True)


def _timeline(
    part: HistoryPage, title: str | None = None, *, names_tasks: bool = False
) -> Timeline:
    now = clock.now()
    lines = [TimelineLine(entry, names_tasks, now) for entry in reversed(part.entries)]
    if title is None:
        is_whole = part.following is None
        title = "History" if is_whole else f"History (the newest {len(lines)} entries)"
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
    """Return the time in the entered state, up to now if it lasts; empty if it is terminal."""
    if change.seconds is not None:
        return length(change.seconds)
    if not change.enters or change.to_state in TERMINAL:
        return ""
    return f"{length(max(0.0, (now - change.at).total_seconds()))} so far"
