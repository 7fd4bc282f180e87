"""Follow the output of a job's tasks through all their attempts until it is complete."""

from collections.abc import Callable
from dataclasses import dataclass, field

from client.documents import Job, Task
from client.polling import PollInterval, beats
from client.session import Session
from client.states import TERMINAL_STATES

STREAMS = ("stdout", "stderr")
# What an attempt wrote is shipped apart from the report of its end: after the end, and before its
# cell confirmed that the container is gone, so many empty answers are believed.
EMPTY_ANSWERS_TRUSTED = 3

Write = Callable[[str, str, str], None]
"""Takes the name of a task (`group.index`), the stream, and a whole line without its end."""


@dataclass
class _LogTail:
    """The end of one attempt's log, as far as it was read."""

    name: str
    uid: str
    ended: bool = False
    empty_answers: int = 0
    cursors: dict[str, str] = field(default_factory=lambda: dict.fromkeys(STREAMS, "0"))
    rests: dict[str, bytes] = field(default_factory=lambda: dict.fromkeys(STREAMS, b""))

    @property
    def is_through(self) -> bool:
        """Whether nothing more is expected."""
        return self.empty_answers >= EMPTY_ANSWERS_TRUSTED


class LogFollower:
    """Writes whole lines as they come, of the attempts of those tasks that it is shown."""

    def __init__(self, session: Session, write: Write) -> None:
        self._session = session
        self._write = write
        self._tails: dict[str, _LogTail] = {}
        self._of_task: dict[int, list[_LogTail]] = {}
        self._numbers: dict[int, int] = {}

    def follow_task(self, task: Task) -> None:
        """Note a task's attempts, also those that came and went between two polls."""
        known, number = self._numbers.get(task["id"], 0), task["attempt_number"]
        uid, tails = task["attempt_uid"], self._of_task.setdefault(task["id"], [])
        if number > known:
            uids = [uid] if uid and number == known + 1 else []
            if not uids:
                uids = [attempt["uid"] for attempt in self._session.attempts(task["id"])]
            for fresh in uids:
                if fresh not in self._tails:
                    self._tails[fresh] = _LogTail(f"{task['group']}.{task['index']}", fresh)
                    tails.append(self._tails[fresh])
            self._numbers[task["id"]] = number
        for tail in tails:
            tail.ended = tail.uid != uid or task["state"] in TERMINAL_STATES

    def follow_attempt(self, uid: str, name: str, *, ended: bool) -> None:
        """Take notice of one attempt alone."""
        self._tails.setdefault(uid, _LogTail(name, uid)).ended = ended

    def read(self) -> bool:
        """Write what came since; return whether anything did."""
        came = False
        for tail in self._tails.values():
            if tail.is_through:
                continue
            if self._read_tail(tail):
                came = True
                tail.empty_answers = 0
            elif tail.ended:
                self._count_empty(tail)
        return came

    def is_through(self) -> bool:
        """Whether all attempts seen so far ended and were read to their end."""
        return all(tail.is_through for tail in self._tails.values())

    def close(self) -> None:
        """Write what has no line end yet."""
        for tail in self._tails.values():
            self._flush(tail)

    def _count_empty(self, tail: _LogTail) -> None:
        tail.empty_answers += 1
        if not tail.is_through and self._session.attempt(tail.uid)["released_at"] is not None:
            # Its cell has confirmed the end: what it wrote is there, or comes with this answer.
            self._read_tail(tail)
            tail.empty_answers = EMPTY_ANSWERS_TRUSTED
        if tail.is_through:
            self._flush(tail)

    def _read_tail(self, tail: _LogTail) -> bool:
        came = False
        for stream in STREAMS:
            while True:
                piece = self._session.log(tail.uid, stream, tail.cursors[stream])
                if piece.cursor == tail.cursors[stream]:
                    break
                came = True
                tail.cursors[stream] = piece.cursor
                *lines, rest = (tail.rests[stream] + piece.content).split(b"\n")
                tail.rests[stream] = rest
                for line in lines:
                    self._write(tail.name, stream, _text(line))
        return came

    def _flush(self, tail: _LogTail) -> None:
        for stream in STREAMS:
            if tail.rests[stream]:
                self._write(tail.name, stream, _text(tail.rests[stream]))
                tail.rests[stream] = b""


def _text(line: bytes) -> str:
    return line.decode("utf-8", errors="replace")


def follow_job(
    session: Session, job_id: int, write: Write, *, deadline_seconds: float | None = None
) -> Job:
    """Write the lines of all tasks of a job until it is terminal and read to the end; return it."""
    follower = LogFollower(session, write)
    pace = PollInterval(deadline_seconds)
    try:
        for _ in beats(pace, f"job {job_id}"):
            # The job first: what its tasks did before it was terminal is seen afterwards.
            job = session.patiently(lambda: session.job(job_id), pace)
            for task in session.patiently(lambda: list(session.tasks(job_id)), pace):
                follower.follow_task(task)
            if session.patiently(follower.read, pace):
                pace.reset()
            elif job["state"] in TERMINAL_STATES and follower.is_through():
                return job
    finally:
        follower.close()
    raise AssertionError("beats never end")
