"""Follow the output of a job's tasks through all their attempts until it is complete."""

from collections.abc import Callable
from dataclasses import dataclass, field

from cellrun.addresses import task_name
from cellrun.api.polling import PollInterval, beats
from cellrun.api.session import Session
from cellrun.documents import Job, Task
from cellrun.states import TERMINAL_STATES

STREAMS = ("stdout", "stderr")
# Output and the report of the end arrive separately. Until the cell confirms that the container is
# gone, so many empty responses after the end mean that no output follows.
MAX_EMPTY_RESPONSES = 3

Write = Callable[[str, str, str], None]
"""A function of the name of a task (`group.index`), the stream, and a line without its end."""


@dataclass
class _LogTail:
    """The position up to which the log of an attempt was read."""

    name: str
    uid: str
    ended: bool = False
    empty_responses: int = 0
    begun: set[str] = field(default_factory=set)
    cursors: dict[str, str] = field(default_factory=lambda: dict.fromkeys(STREAMS, "0"))
    rests: dict[str, bytes] = field(default_factory=lambda: dict.fromkeys(STREAMS, b""))

    @property
    def is_through(self) -> bool:
        """Return whether no more output is expected."""
        return self.empty_responses >= MAX_EMPTY_RESPONSES


class LogFollower:
    """Writes new lines of the attempts of the followed tasks, a whole line at a time."""

    def __init__(
        self,
        session: Session,
        write: Write,
        *,
        name_of: Callable[[Task], str] = task_name,
        tail: int | None = None,
    ) -> None:
        """Begin with the last `tail` lines of each stream; None: with the first line."""
        self._session = session
        self._write = write
        self._name_of = name_of
        self._tail = tail
        self._tails: dict[str, _LogTail] = {}
        self._of_task: dict[int, list[_LogTail]] = {}
        self._numbers: dict[int, int] = {}

    def follow_task(self, task: Task) -> None:
        """Follow all attempts of a task, including those that ended between two polls."""
        known, number = self._numbers.get(task["id"], 0), task["attempt_number"]
        uid, tails = task["attempt_uid"], self._of_task.setdefault(task["id"], [])
        if number > known:
            uids = [uid] if uid and number == known + 1 else []
            if not uids:
                uids = [attempt["uid"] for attempt in self._session.attempts(task["id"])]
            for fresh in uids:
                if fresh not in self._tails:
                    self._tails[fresh] = _LogTail(self._name_of(task), fresh)
                    tails.append(self._tails[fresh])
            self._numbers[task["id"]] = number
        for tail in tails:
            tail.ended = tail.uid != uid or task["state"] in TERMINAL_STATES

    def follow_attempt(self, uid: str, name: str, *, ended: bool) -> None:
        """Follow one attempt."""
        self._tails.setdefault(uid, _LogTail(name, uid)).ended = ended

    def read(self) -> bool:
        """Write new lines; return whether there was new output."""
        has_output = False
        for tail in self._tails.values():
            if tail.is_through:
                continue
            if self._read_tail(tail):
                has_output = True
                tail.empty_responses = 0
            elif tail.ended:
                self._count_empty(tail)
        return has_output

    def is_through(self) -> bool:
        """Return whether all followed attempts have ended and were read to their end."""
        return all(tail.is_through for tail in self._tails.values())

    def close(self) -> None:
        """Write incomplete last lines."""
        for tail in self._tails.values():
            self._flush(tail)

    def _count_empty(self, tail: _LogTail) -> None:
        tail.empty_responses += 1
        if not tail.is_through and self._session.attempt(tail.uid)["released_at"] is not None:
            # Its cell has confirmed the end: this response contains the last output.
            self._read_tail(tail)
            tail.empty_responses = MAX_EMPTY_RESPONSES
        if tail.is_through:
            self._flush(tail)

    def _read_tail(self, tail: _LogTail) -> bool:
        has_output = False
        for stream in STREAMS:
            while True:
                is_first = stream not in tail.begun
                tail.begun.add(stream)
                piece = self._session.log(
                    tail.uid, stream, tail.cursors[stream], tail=self._tail if is_first else None
                )
                if piece.cursor == tail.cursors[stream]:
                    break
                has_output = True
                tail.cursors[stream] = piece.cursor
                *lines, rest = (tail.rests[stream] + piece.content).split(b"\n")
                tail.rests[stream] = rest
                for line in lines:
                    self._write(tail.name, stream, _text(line))
        return has_output

    def _flush(self, tail: _LogTail) -> None:
        for stream in STREAMS:
            if tail.rests[stream]:
                self._write(tail.name, stream, _text(tail.rests[stream]))
                tail.rests[stream] = b""


def _text(line: bytes) -> str:
    return line.decode("utf-8", errors="replace")


def follow_job(
    session: Session,
    job_id: int,
    write: Write,
    *,
    deadline_seconds: float | None = None,
    tail: int | None = None,
    on_poll: Callable[[Job], None] | None = None,
) -> Job:
    """Write the lines of all tasks of a job until it has ended and all is read; return it.

    `tail`: as of `LogFollower`. `on_poll` receives the job at each poll.
    """
    follower = LogFollower(session, write, tail=tail)
    pace = PollInterval(deadline_seconds)
    try:
        for _ in beats(pace, f"job {job_id}"):
            # The job first: later reads include everything from before it was terminal.
            job = session.patiently(lambda: session.job(job_id), pace)
            if on_poll is not None:
                on_poll(job)
            for task in session.patiently(lambda: list(session.tasks(job_id)), pace):
                follower.follow_task(task)
            if session.patiently(follower.read, pace):
                pace.reset()
            elif job["state"] in TERMINAL_STATES and follower.is_through():
                return job
    finally:
        follower.close()
    raise AssertionError("beats never end")
