"""The history as people read it: how long each state lasted, and what repeats as one entry.

Storage keeps every change for itself. Here changes become entries, and nothing gets lost on the
way: each change is in exactly one entry, and what befell a task stays in its order. Two things
are merged: the same change of several tasks within a second (a thousand tasks placed at once), and
a round that repeats (seven times placed and refused). Changes come newest first, as they are read.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from controlplane.contract.states import TaskState
from controlplane.domain.state.states import REASONS, Reason

CELL = "cell"
"""Who is said to have reported; which cell that was, the attempt knows."""
CONTROL_PLANE = frozenset({"placement", "convergence", "submission", "recount"})
USER = "user"

# What one pass of placement or one batch of reports changes is one moment to a reader.
_MOMENT = timedelta(seconds=1)
# The stages of an attempt, from its placing to its release, with its phases and failed tries.
_LONGEST_ROUND = 14
# Two rounds are read faster one after the other.
_ROUNDS = 3
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Change:
    """One row of the history. `task_id` is None where the job itself moved.

    `seconds`: how long it stayed in the state that it entered; None while it is still there, and
    where it entered none.
    """

    id: int
    job_id: int
    task_id: int | None
    task_name: str | None
    attempt_uid: UUID | None
    attempt_number: int | None
    cell: str | None
    from_state: TaskState | None
    to_state: TaskState | None
    attempt_state: TaskState | None
    reason: str
    message: str
    actor: str
    at: datetime
    seconds: float | None = None

    @property
    def enters(self) -> bool:
        """Return whether a state was entered. Else a phase began, or an attempt was released."""
        return self.to_state is not None and self.to_state is not self.from_state

    @property
    def actor_kind(self) -> str:
        """`cell`, `control_plane` or `user`."""
        if self.actor == CELL:
            return CELL
        return "control_plane" if self.actor in CONTROL_PLANE else USER

    @property
    def who(self) -> str:
        """Return a user's name, a cell's name, or the part of the control plane."""
        return self.cell or self.actor if self.actor == CELL else self.actor

    @property
    def sentence(self) -> str:
        """Return the reason in words."""
        return REASONS[Reason(self.reason)] if self.reason in set(Reason) else self.reason


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One change, or several that are shown as one, newest first."""

    changes: tuple[Change, ...]

    @property
    def newest(self) -> Change:
        """Return the change that stands for all: states, reason and kind of actor are the same."""
        return self.changes[0]

    @property
    def count(self) -> int:
        """Return how many changes it is."""
        return len(self.changes)

    @property
    def tasks(self) -> int:
        """Of how many tasks; 0: it is the job's own."""
        return len({change.task_id for change in self.changes} - {None})

    @property
    def first_at(self) -> datetime:
        """Return when the earliest of them was."""
        return min(change.at for change in self.changes)

    @property
    def last_at(self) -> datetime:
        """Return when the latest of them was."""
        return max(change.at for change in self.changes)

    @property
    def seconds(self) -> float | None:
        """Return how long all stays that are over took together; None: none is over."""
        known = self._stays()
        return sum(known) if known else None

    @property
    def longest_seconds(self) -> float | None:
        """Return the longest of these stays."""
        return max(self._stays(), default=None)

    @property
    def still(self) -> int:
        """Return how many are in the state that they entered to this moment."""
        return sum(change.enters and change.seconds is None for change in self.changes)

    @property
    def message(self) -> str:
        """Return what was said; the newest few where it differs."""
        return _few((change.message for change in self.changes), "; ")

    @property
    def who(self) -> str:
        """Who did it; the newest few where they differ."""
        return _few((change.who for change in self.changes), ", ")

    def shared(self, read: Callable[[Change], Any]) -> Any:
        """Return what `read` says of all changes alike; None where it differs."""
        found = {read(change) for change in self.changes}
        return found.pop() if len(found) == 1 else None

    def _stays(self) -> list[float]:
        return [change.seconds for change in self.changes if change.seconds is not None]


def measure(
    changes: Iterable[Change], left_at: dict[int | None, datetime] | None = None
) -> list[Change]:
    """Return the changes with how long each state lasted.

    `left_at`: by task (None: the job), when what is newest here was left for what is newer still.
    It is brought on to the oldest change, for whoever goes on with what is older. A report may tell
    late of an earlier instant; then what came before was over by then as well.
    """
    until = {} if left_at is None else left_at
    measured = []
    for change in changes:
        if change.enters:
            left = until.get(change.task_id)
            since = change.at if left is None else min(change.at, left)
            until[change.task_id] = since
            if left is not None:
                change = replace(change, seconds=(left - since).total_seconds())
        measured.append(change)
    return measured


def first_entries(changes: Sequence[Change], limit: int) -> list[TimelineEntry]:
    """At most `limit` entries, made of the newest changes without a gap, so that a page can end.

    There are fewer if what comes next are rounds that do not fit.
    """
    crowds, starts = _crowds(changes)
    used = shown = 0
    rounds = []
    for length, times in _rounds([_likeness(crowd[0]) for crowd in crowds], limit):
        if shown + length > limit:
            break
        rounds.append((length, times))
        shown, used = shown + length, used + length * times
    if used < len(crowds):
        # The first that is left out may be newer than some of a crowd before it: cut there.
        crowds, _ = _crowds(changes[: starts[used]])
    entries, place = [], 0
    for length, times in rounds:
        for offset in range(length):
            alike = [crowds[place + offset + turn * length] for turn in range(times)]
            entries.append(TimelineEntry(tuple(change for crowd in alike for change in crowd)))
        place += length * times
    return entries


class _MergeKey(NamedTuple):
    """What changes have in common that are shown as one."""

    is_of_job: bool
    from_state: TaskState | None
    to_state: TaskState | None
    attempt_state: TaskState | None
    reason: str
    actor: str
    said: str | None


def _likeness(change: Change) -> _MergeKey:
    """Return what moves nothing only says something, so that is told apart too."""
    return _MergeKey(
        change.task_id is None,
        change.from_state,
        change.to_state,
        change.attempt_state,
        change.reason,
        change.actor,
        None if change.enters else change.message,
    )


def _crowds(changes: Sequence[Change]) -> tuple[list[list[Change]], list[int]]:
    """Return the same changes of different tasks at one moment together, and where each crowd
    begins.

    A change joins no crowd that would take it past a newer change of its own task, or of its job.
    """
    crowds: list[list[Change]] = []
    starts: list[int] = []
    latest: dict[_MergeKey, int] = {}
    passed: dict[int | None, int] = {}
    for position, change in enumerate(changes):
        likeness = _likeness(change)
        place = latest.get(likeness, -1)
        behind = max(passed.get(change.task_id, -1), passed.get(None, -1))
        is_far = place <= behind or abs(crowds[place][0].at - change.at) > _MOMENT
        if is_far:
            place = latest[likeness] = len(crowds)
            crowds.append([])
            starts.append(position)
        crowds[place].append(change)
        passed[change.task_id] = place
    return crowds, starts


def _rounds(keys: Sequence[_MergeKey], limit: int) -> Iterable[tuple[int, int]]:
    """Return how many entries a round has, and how often it comes in a row, from the newest on."""
    start = 0
    while start < len(keys):
        best = (1, 1)
        for length in range(1, min(_LONGEST_ROUND, limit, len(keys) - start) + 1):
            first = keys[start : start + length]
            # A round of several changes is a life of an attempt: its oldest is the placing.
            if length > 1 and first[-1].reason != Reason.PLACED:
                continue
            times = 1
            while keys[start + times * length : start + (times + 1) * length] == first:
                times += 1
            enough = 2 if length == 1 else _ROUNDS
            if times >= enough and length * times > best[0] * best[1]:
                best = (length, times)
        yield best
        start += best[0] * best[1]


def _few(texts: Iterable[str], separator: str) -> str:
    distinct = [text for text in dict.fromkeys(texts) if text]
    return separator.join([*distinct[:_NAMED], *(["…"] if len(distinct) > _NAMED else [])])
