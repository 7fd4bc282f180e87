"""The history of a job or a task as a timeline: what, when, why, by whom, after how long."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any, ClassVar

from django.utils.safestring import SafeString

from controlplane.admin.badges import duration, instant, page_link, state_badge
from controlplane.admin.base import Section
from controlplane.contract.states import TaskState
from controlplane.domain.states import COLOURS, REASONS, Reason
from controlplane.models import Task, Transition

# A job of 10,000 tasks has 40,000 entries: its page shows the newest of them.
ENTRIES = 200


@dataclass(slots=True)
class Entry:
    """One line; `times` of equal neighbours are drawn as one."""

    subject: SafeString | str
    from_state: int | None
    to_state: int | None
    attempt_state: int | None
    reason: str
    message: str
    actor: str
    at: datetime
    is_of_task: bool = True
    after: str = ""
    times: int = 1

    @property
    def colour(self) -> str:
        """Of the dot."""
        state = self.to_state or self.attempt_state
        return COLOURS[TaskState(state)] if state else "#57606a"

    @property
    def badges(self) -> list[SafeString]:
        """The states it went through; of the attempt alone when its task did not move."""
        if self.to_state is None or self.from_state == self.to_state:
            return [state_badge(self.attempt_state)] if self.attempt_state else []
        return [state_badge(state) for state in (self.from_state, self.to_state) if state]

    @property
    def sentence(self) -> str:
        """The reason in words."""
        return REASONS[Reason(self.reason)] if self.reason in set(Reason) else self.reason

    @property
    def when(self) -> SafeString | str:
        """The instant."""
        return instant(self.at)

    def is_like(self, other: "Entry") -> bool:
        """Whether both are drawn as one line: the same change, to the second, of several tasks."""
        return (
            (self.from_state, self.to_state, self.attempt_state, self.reason, self.message)
            == (other.from_state, other.to_state, other.attempt_state, other.reason, other.message)
            and self.actor == other.actor
            and self.is_of_task
            and other.is_of_task
            and abs((self.at - other.at).total_seconds()) < 1
        )


@dataclass(frozen=True, slots=True)
class Timeline(Section):
    """The section of a page."""

    template: ClassVar[str] = "controlplane/section_timeline.html"
    entries: list[Entry] = field(default_factory=list)


def task_timeline(task: Task) -> Timeline:
    """A task's whole history (its newest entries, if there are very many), oldest first."""
    found = Transition.objects.filter(task_id=task.pk).order_by("-id")[:ENTRIES]
    entries = [_entry(row, "") for row in _by_time(found)]
    for before, entry in pairwise(entries):
        entry.after = duration(before.at, entry.at)
    return Timeline("History", entries=entries)


def job_timeline(job_id: int) -> Timeline:
    """The newest entries of a job and its tasks, oldest first, equal neighbours drawn as one."""
    found = list(Transition.objects.filter(job_id=job_id).order_by("-id")[:ENTRIES])
    names = _task_names({row.task_id for row in found if row.task_id is not None})
    entries: list[Entry] = []
    for row in _by_time(found):
        entry = _entry(row, _subject(row, names))
        if entries and entries[-1].is_like(entry):
            entries[-1].times += 1
            entries[-1].subject = f"{entries[-1].times} tasks"
        else:
            entries.append(entry)
    for before, entry in pairwise(entries):
        entry.after = duration(before.at, entry.at)
    title = "History" if len(found) < ENTRIES else f"History (its newest {ENTRIES} entries)"
    return Timeline(title, entries=entries)


def _by_time(rows: Iterable[Transition]) -> list[Transition]:
    """Oldest first. Ids grow in the order of commits, and a report tells of instants before it."""
    return sorted(rows, key=lambda row: (row.at, row.pk))


def _task_names(task_ids: Iterable[int]) -> dict[int, str]:
    rows: Iterable[tuple[Any, ...]] = Task.objects.filter(pk__in=list(task_ids)).values_list(
        "pk", "group__name", "index"
    )
    return {key: f"{group}.{index}" for key, group, index in rows}


def _subject(row: Transition, names: Mapping[int, str]) -> SafeString | str:
    if row.task_id is None:
        return "job"
    return page_link("task", row.task_id, names.get(row.task_id, f"task {row.task_id}"))


def _entry(row: Transition, subject: SafeString | str) -> Entry:
    return Entry(
        subject=subject,
        from_state=row.from_state,
        to_state=row.to_state,
        attempt_state=row.attempt_state,
        reason=row.reason,
        message=row.message,
        actor=row.actor,
        at=row.at,
        is_of_task=row.task_id is not None,
    )
