"""Report why a job waits: once it has waited for some seconds, and again when that changes."""

from collections.abc import Callable

from cellrun.api.session import Session
from cellrun.display.render import total_counts
from cellrun.documents import Job
from cellrun.errors import ClientError
from cellrun.states import ACTIVE_STATES, TERMINAL_STATES

FIRST_SECONDS = 3.0
# Figures in a text, such as a place in the queue, change often.
SAME_CODE_SECONDS = 30.0

Print = Callable[[str], None]


class WaitReporter:
    """Prints the pending reason of a job of which no task is on a cell."""

    def __init__(self, session: Session, job_id: int, write: Print) -> None:
        self._session = session
        self._job_id = job_id
        self._write = write
        self._since: float | None = None
        self._printed: tuple[str, str] | None = None
        self._printed_at = 0.0

    def check(self, job: Job, now: float) -> None:
        """Print what is new. `now`: seconds of a monotonic clock."""
        if not _is_waiting(job):
            self._since = None
            if self._printed is not None and job["state"] not in TERMINAL_STATES:
                self._write(f"{_subject(job)} no longer waits")
            self._printed = None
            return
        if self._since is None:
            self._since = now
        if now - self._since < FIRST_SECONDS:
            return
        reason = self._read()
        if reason is None or reason == self._printed:
            return
        is_same_code = self._printed is not None and reason[0] == self._printed[0]
        if is_same_code and now - self._printed_at < SAME_CODE_SECONDS:
            return
        self._printed, self._printed_at = reason, now
        self._write(f"{_subject(job)} waits: {reason[1]}")

    def _read(self) -> tuple[str, str] | None:
        """Return the code and the text of the reason of the first pending task."""
        try:
            tasks = list(self._session.tasks(self._job_id, state="pending", limit=1))
        except ClientError:
            return None  # the next poll reports an error that lasts
        reason = tasks[0]["pending_reason"] if tasks else None
        return None if reason is None else (reason["code"], reason["text"])


def _subject(job: Job) -> str:
    """Return the number of a job, and the schedule that submitted it."""
    schedule = job.get("schedule")
    return f"job {job['id']}" + (f" of schedule {schedule['name']}" if schedule else "")


def _is_waiting(job: Job) -> bool:
    counts = total_counts(job)
    is_active = any(counts.get(state) for state in ACTIVE_STATES)
    return job["state"] not in TERMINAL_STATES and bool(counts.get("PENDING")) and not is_active
