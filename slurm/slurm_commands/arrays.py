"""Indexes of job arrays: what `--array` means, and the ids of jobs and array tasks."""

import re
from dataclasses import dataclass

from slurm_commands.options import Refused

MAX_TASKS = 10_000
_PART = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
_COUNT = re.compile(r"[1-9]\d*")
_ID = re.compile(r"(\d+)(?:_(\d+))?")
# The longest value of a label, in which the indexes of a job are recorded.
_MAX_CHARACTERS = 255


@dataclass(frozen=True, slots=True)
class Segment:
    """`count` indexes from `first` in steps of `step`."""

    first: int
    count: int
    step: int = 1

    @property
    def last(self) -> int:
        """Return the largest index."""
        return self.first + (self.count - 1) * self.step


@dataclass(frozen=True, slots=True)
class TaskArray:
    """The indexes of an array in their order, and how many of its tasks may run at once."""

    text: str
    segments: tuple[Segment, ...]
    limit: int | None = None

    @property
    def count(self) -> int:
        """Return the number of tasks."""
        return sum(segment.count for segment in self.segments)

    @property
    def first(self) -> int:
        """Return the smallest index."""
        return min(segment.first for segment in self.segments)

    @property
    def last(self) -> int:
        """Return the largest index."""
        return max(segment.last for segment in self.segments)

    @property
    def step(self) -> int:
        """Return the step of an array of one segment, else 1."""
        return self.segments[0].step if len(self.segments) == 1 else 1

    def index_of(self, position: int) -> int:
        """Return the index of the task at `position`, from 0."""
        for segment in self.segments:
            if position < segment.count:
                return segment.first + position * segment.step
            position -= segment.count
        raise IndexError(position)


def read_array(text: str) -> TaskArray:
    """Return the array of `1-10`, `0-20:4`, `1,3,7-9` or `1-10%2`. Raise Refused."""
    indexes, percent, limit = text.partition("%")
    if percent and (not _COUNT.fullmatch(limit) or int(limit) > MAX_TASKS):
        raise Refused(f"--array={text}: %{limit} is not a number of tasks from 1 to {MAX_TASKS}")
    segments = []
    for part in indexes.split(","):
        found = _PART.fullmatch(part)
        if not found:
            raise Refused(f"--array={text}: is not a list of indexes such as 1-10 or 1,3,7-9:2")
        first, last, step = (int(word) if word else None for word in found.groups())
        assert first is not None
        if (last is not None and last < first) or step == 0:
            raise Refused(f"--array={text}: {part} has no indexes")
        width = step or 1
        segments.append(Segment(first, ((last or first) - first) // width + 1, width))
    array = TaskArray(indexes, tuple(segments), int(limit) if percent else None)
    if array.count > MAX_TASKS:
        raise Refused(f"--array={text}: has {array.count} tasks; at most {MAX_TASKS} are possible")
    if len(indexes) > _MAX_CHARACTERS:
        raise Refused(f"--array: a list of {len(indexes)} characters is too long: use ranges")
    _require_unique(array, text)
    return array


def _require_unique(array: TaskArray, text: str) -> None:
    indexes = [array.index_of(position) for position in range(array.count)]
    if len(set(indexes)) < len(indexes):
        raise Refused(f"--array={text}: an index occurs twice")


@dataclass(frozen=True, slots=True)
class JobAddress:
    """A job, or with `index` one task of an array."""

    job_id: int
    index: int | None = None


def read_address(text: str) -> JobAddress:
    """Return the address `12` or `12_3`. Raise Refused."""
    found = _ID.fullmatch(text)
    if not found:
        raise Refused(f"{text!r} is not an id of a job such as 12, or 12_3 for an array task")
    return JobAddress(int(found[1]), None if found[2] is None else int(found[2]))
