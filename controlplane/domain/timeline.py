"""The history for display, newest first: with the duration of each state, and merged entries.

An entry merges equal changes of several tasks within a second (a thousand tasks placed at once), or
the repetitions of a round of changes (placed and refused seven times). Each change is in exactly
one entry, and the changes of a task keep their order.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from controlplane.contract.states import TaskState
from controlplane.domain.state.states import Reason, text_of_reason

CELL = "cell"
"""The actor of a change that a cell reported; the attempt names the cell."""
CONTROL_PLANE = frozenset({"placement", "convergence", "submission", "recount"})
USER = "user"

# Changes of one placement pass or one batch of reports count as simultaneous.
_SIMULTANEOUS = timedelta(seconds=1)
# Changes of an attempt from placement to release, with phases and failed tries.
_MAX_ROUND_LENGTH = 14
# Fewer equal rounds are not merged.
_MIN_ROUNDS = 3
_MAX_TEXTS = 3


class Change(NamedTuple):
    """One row of the history. `task_id`: None for a change of the job itself.

    `seconds`: duration of the entered state; None if it still lasts or no state was entered. The
    page of a job reads up to 20,000 changes, and a tuple costs a fifth of a frozen dataclass.
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
        """Return whether a state was entered; if not, a phase began or an attempt was released."""
        return self.to_state is not None and self.to_state is not self.from_state

    @property
    def actor_kind(self) -> str:
        """Return the kind of actor: `cell`, `control_plane` or `user`."""
        if self.actor == CELL:
            return CELL
        return "control_plane" if self.actor in CONTROL_PLANE else USER

    @property
    def shown_actor(self) -> str:
        """Return the name of the cell, the control-plane component or the user."""
        return self.cell or self.actor if self.actor == CELL else self.actor

    @property
    def sentence(self) -> str:
        """Return the text of the reason."""
        return text_of_reason(self.reason)


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One change, or several merged ones, newest first."""

    changes: tuple[Change, ...]

    @property
    def newest(self) -> Change:
        """Return the newest change; the others have the same states, reason and actor."""
        return self.changes[0]

    @property
    def count(self) -> int:
        """Return the number of changes."""
        return len(self.changes)

    @property
    def tasks(self) -> int:
        """Return the number of tasks; 0 for a change of the job."""
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
        """Return the total duration of the states that were left; None if none was left."""
        durations = self._durations()
        return sum(durations) if durations else None

    @property
    def longest_seconds(self) -> float | None:
        """Return the longest duration of a state that was left."""
        return max(self._durations(), default=None)

    @property
    def still(self) -> int:
        """Return the number of entered states that still last."""
        return sum(change.enters and change.seconds is None for change in self.changes)

    @property
    def message(self) -> str:
        """Return the message, or the newest ones if they differ."""
        return _join_distinct((change.message for change in self.changes), "; ")

    @property
    def shown_actor(self) -> str:
        """Return the actor, or the newest ones if they differ."""
        return _join_distinct((change.shown_actor for change in self.changes), ", ")

    def shared(self, read: Callable[[Change], Any]) -> Any:
        """Return the result of `read` if it is equal for all changes, else None."""
        values = {read(change) for change in self.changes}
        return values.pop() if len(values) == 1 else None

    def _durations(self) -> list[float]:
        return [change.seconds for change in self.changes if change.seconds is not None]


def measure(
    changes: Iterable[Change], left_at: dict[int | None, datetime] | None = None
) -> list[Change]:
    """Return the changes with the duration of each state.

    `left_at`: by task (None: the job), the time at which the state of its newest change was left.
    It is updated, so that the next call can pass older changes. A change that is recorded before
    a late report with an earlier time ends at that time.
    """
    end_of = {} if left_at is None else left_at
    measured = []
    for change in changes:
        if change.enters:
            end = end_of.get(change.task_id)
            begin = change.at if end is None else min(change.at, end)
            end_of[change.task_id] = begin
            if end is not None:
                change = change._replace(seconds=(end - begin).total_seconds())
        measured.append(change)
    return measured


def first_entries(changes: Sequence[Change], limit: int) -> list[TimelineEntry]:
    """Return a page of at most `limit` entries of the newest changes, without a gap.

    The page is shorter if the next round does not fit.
    """
    bursts, starts = _bursts(changes)
    used_bursts = entry_count = 0
    rounds = []
    for length, times in _rounds([_merge_key(burst[0]) for burst in bursts], limit):
        if entry_count + length > limit:
            break
        rounds.append((length, times))
        entry_count, used_bursts = entry_count + length, used_bursts + length * times
    if used_bursts < len(bursts):
        # The first omitted change may be newer than changes of an earlier burst: cut there.
        bursts, _ = _bursts(changes[: starts[used_bursts]])
    entries, position = [], 0
    for length, times in rounds:
        for offset in range(length):
            equal = [bursts[position + offset + repetition * length] for repetition in range(times)]
            entries.append(TimelineEntry(tuple(change for burst in equal for change in burst)))
        position += length * times
    return entries


class _MergeKey(NamedTuple):
    """The fields that must be equal in merged changes."""

    is_of_job: bool
    from_state: TaskState | None
    to_state: TaskState | None
    attempt_state: TaskState | None
    reason: str
    actor: str
    note: str | None


def _merge_key(change: Change) -> _MergeKey:
    """Return the merge key, which contains the message only if no state was entered."""
    return _MergeKey(
        change.task_id is None,
        change.from_state,
        change.to_state,
        change.attempt_state,
        change.reason,
        change.actor,
        None if change.enters else change.message,
    )


def _bursts(changes: Sequence[Change]) -> tuple[list[list[Change]], list[int]]:
    """Return bursts of simultaneous equal changes, and the position of the first change of each.

    A change joins only a burst after those of the newer changes of its task and of the job.
    """
    bursts: list[list[Change]] = []
    starts: list[int] = []
    latest: dict[_MergeKey, int] = {}
    last_burst: dict[int | None, int] = {}
    for position, change in enumerate(changes):
        key = _merge_key(change)
        index = latest.get(key, -1)
        preceding = max(last_burst.get(change.task_id, -1), last_burst.get(None, -1))
        is_new = index <= preceding or abs(bursts[index][0].at - change.at) > _SIMULTANEOUS
        if is_new:
            index = latest[key] = len(bursts)
            bursts.append([])
            starts.append(position)
        bursts[index].append(change)
        last_burst[change.task_id] = index
    return bursts, starts


def _rounds(keys: Sequence[_MergeKey], limit: int) -> Iterable[tuple[int, int]]:
    """Yield (length, repetitions) of consecutive rounds, newest first."""
    start = 0
    while start < len(keys):
        best = (1, 1)
        for length in range(1, min(_MAX_ROUND_LENGTH, limit, len(keys) - start) + 1):
            first = keys[start : start + length]
            # A round of several changes is one attempt, whose oldest change is the placement.
            if length > 1 and first[-1].reason != Reason.PLACED:
                continue
            times = 1
            while keys[start + times * length : start + (times + 1) * length] == first:
                times += 1
            minimum = 2 if length == 1 else _MIN_ROUNDS
            if times >= minimum and length * times > best[0] * best[1]:
                best = (length, times)
        yield best
        start += best[0] * best[1]


def _join_distinct(texts: Iterable[str], separator: str) -> str:
    distinct = [text for text in dict.fromkeys(texts) if text]
    return separator.join([*distinct[:_MAX_TEXTS], *(["…"] if len(distinct) > _MAX_TEXTS else [])])
