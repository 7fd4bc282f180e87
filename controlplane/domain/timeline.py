"""The history for display: how long each state lasted, with repeated changes merged.

Each change is in exactly one entry, and the changes of a task keep their order. Merged are the same
change of several tasks within a second (a thousand tasks placed at once), and a round that repeats
(placed and refused seven times). Changes are sorted newest first.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from controlplane.contract.states import TaskState
from controlplane.domain.state.states import REASONS, Reason

CELL = "cell"
"""The actor of a change that a cell reported; the attempt names the cell."""
CONTROL_PLANE = frozenset({"placement", "convergence", "submission", "recount"})
USER = "user"

# Changes of one placement pass or one batch of reports are shown as simultaneous.
_MOMENT = timedelta(seconds=1)
# The stages of an attempt, from placement to release, with phases and failed tries.
_LONGEST_ROUND = 14
# Two equal rounds are not merged.
_ROUNDS = 3
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Change:
    """One row of the history. `task_id` is None where the job itself moved.

    `seconds`: duration of the state that was entered; None if it still lasts, or if no state was
    entered.
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
        """Return whether a state was entered; else a phase began, or an attempt was released."""
        return self.to_state is not None and self.to_state is not self.from_state

    @property
    def actor_kind(self) -> str:
        """`cell`, `control_plane` or `user`."""
        if self.actor == CELL:
            return CELL
        return "control_plane" if self.actor in CONTROL_PLANE else USER

    @property
    def shown_actor(self) -> str:
        """Return the name of the user, the cell, or the control-plane component."""
        return self.cell or self.actor if self.actor == CELL else self.actor

    @property
    def sentence(self) -> str:
        """Return the text of the reason."""
        return REASONS[Reason(self.reason)] if self.reason in set(Reason) else self.reason


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One change, or several that are shown as one, newest first."""

    changes: tuple[Change, ...]

    @property
    def newest(self) -> Change:
        """Return the newest change; all have the same states, reason and kind of actor."""
        return self.changes[0]

    @property
    def count(self) -> int:
        """Return the number of changes."""
        return len(self.changes)

    @property
    def tasks(self) -> int:
        """Return the number of tasks; 0: a change of the job."""
        return len({change.task_id for change in self.changes} - {None})

    @property
    def first_at(self) -> datetime:
        """Return the time of the earliest change."""
        return min(change.at for change in self.changes)

    @property
    def last_at(self) -> datetime:
        """Return the time of the latest change."""
        return max(change.at for change in self.changes)

    @property
    def seconds(self) -> float | None:
        """Return the total duration of the states that are over; None: none is over."""
        known = self._stays()
        return sum(known) if known else None

    @property
    def longest_seconds(self) -> float | None:
        """Return the longest of these durations."""
        return max(self._stays(), default=None)

    @property
    def still(self) -> int:
        """Return how many are still in the state that they entered."""
        return sum(change.enters and change.seconds is None for change in self.changes)

    @property
    def message(self) -> str:
        """Return the message, or the newest few if they differ."""
        return _few((change.message for change in self.changes), "; ")

    @property
    def shown_actor(self) -> str:
        """Return the actor, or the newest few if they differ."""
        return _few((change.shown_actor for change in self.changes), ", ")

    def shared(self, read: Callable[[Change], Any]) -> Any:
        """Return the result of `read` if it is equal for all changes, else None."""
        found = {read(change) for change in self.changes}
        return found.pop() if len(found) == 1 else None

    def _stays(self) -> list[float]:
        return [change.seconds for change in self.changes if change.seconds is not None]


def measure(
    changes: Iterable[Change], left_at: dict[int | None, datetime] | None = None
) -> list[Change]:
    """Return the changes with the duration of each state.

    `left_at`: by task (None: the job), when the state of the newest change was left; updated to the
    oldest change, for the next call with older changes. A late report may have an earlier time;
    then the changes before it end at that time, too.
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
    """Return at most `limit` entries of the newest changes without a gap, as one page.

    There are fewer if the next round does not fit.
    """
    crowds, starts = _crowds(changes)
    used = shown = 0
    rounds = []
    for length, times in _rounds([_merge_key(crowd[0]) for crowd in crowds], limit):
        if shown + length > limit:
            break
        rounds.append((length, times))
        shown, used = shown + length, used + length * times
    if used < len(crowds):
        # The first omitted change may be newer than changes of an earlier crowd: cut there.
        crowds, _ = _crowds(changes[: starts[used]])
    entries, place = [], 0
    for length, times in rounds:
        for offset in range(length):
            alike = [crowds[place + offset + turn * length] for turn in range(times)]
            entries.append(TimelineEntry(tuple(change for crowd in alike for change in crowd)))
        place += length * times
    return entries


class _MergeKey(NamedTuple):
    """The fields that are equal in changes that are merged."""

    is_of_job: bool
    from_state: TaskState | None
    to_state: TaskState | None
    attempt_state: TaskState | None
    reason: str
    actor: str
    note: str | None


def _merge_key(change: Change) -> _MergeKey:
    """Return the merge key; it has the message only if no state was entered."""
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
    """Return simultaneous equal changes of different tasks as crowds, and where each crowd begins.

    A change joins no crowd before a newer change of its own task or job.
    """
    crowds: list[list[Change]] = []
    starts: list[int] = []
    latest: dict[_MergeKey, int] = {}
    passed: dict[int | None, int] = {}
    for position, change in enumerate(changes):
        key = _merge_key(change)
        place = latest.get(key, -1)
        behind = max(passed.get(change.task_id, -1), passed.get(None, -1))
        is_far = place <= behind or abs(crowds[place][0].at - change.at) > _MOMENT
        if is_far:
            place = latest[key] = len(crowds)
            crowds.append([])
            starts.append(position)
        crowds[place].append(change)
        passed[change.task_id] = place
    return crowds, starts


def _rounds(keys: Sequence[_MergeKey], limit: int) -> Iterable[tuple[int, int]]:
    """Yield the entries of each round and its consecutive repetitions, newest first."""
    start = 0
    while start < len(keys):
        best = (1, 1)
        for length in range(1, min(_LONGEST_ROUND, limit, len(keys) - start) + 1):
            first = keys[start : start + length]
            # A round of several changes is one attempt: its oldest change is the placement.
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
