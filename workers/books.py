"""The cell's books: what it knows of each attempt in its charge."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.contract.orders import GroupSpec, RunAttempt, StopAttempt
from controlplane.contract.reports import AttemptReport
from controlplane.contract.states import Phase, TaskState


@dataclass(slots=True)
class Book:
    """One attempt: what was ordered, and the facts so far."""

    run: RunAttempt
    spec: GroupSpec
    state: TaskState = TaskState.ASSIGNED
    phase: Phase | None = None
    progress: int | None = None
    container_id: str | None = None
    started_at: float | None = None
    addresses: Mapping[str, str] | None = None
    plugin_phase: str | None = None
    plugin_state: Mapping[str, Any] | None = None
    stop: StopAttempt | None = None
    is_moving: bool = False  # the cell is leaving and told it to end: it is to run elsewhere
    end: AttemptReport | None = None
    is_blamed: bool = False  # handling it killed the cell's process, again and again

    @property
    def uid(self) -> str:
        """The attempt's uid."""
        return self.run.uid

    def order_to_move(self, *, force: bool = False) -> StopAttempt:
        """The cell's own order to end it here."""
        return StopAttempt(self.uid, "drained", self.spec.stop_grace_seconds, force)

    def move(self, state: TaskState, *, started_at: float | None = None) -> None:
        """The attempt got on; it never goes back from RUNNING to BUILDING."""
        if self.state is not TaskState.RUNNING:
            self.state = state
        if started_at is not None:
            self.started_at = started_at

    def report(self) -> AttemptReport:
        """All facts so far, not numbered yet."""
        return AttemptReport(
            uid=self.uid,
            seq=0,
            state=self.state,
            phase=self.phase,
            progress=self.progress,
            container_id=self.container_id,
            started_at=self.started_at,
            addresses=self.addresses,
            plugin_phase=self.plugin_phase,
            plugin_state=self.plugin_state,
        )


class Books:
    """The books of all attempts that are under way or whose end is not acknowledged."""

    def __init__(self) -> None:
        self._books: dict[str, Book] = {}
        self._running: dict[str, Book] = {}

    @staticmethod
    def prepare(run: RunAttempt, spec: GroupSpec) -> Book:
        """A book that is not in use yet."""
        return Book(run, spec)

    def open(self, run: RunAttempt, spec: GroupSpec) -> Book:
        """A new book, in use."""
        book = Book(run, spec)
        self.add(book)
        return book

    def add(self, book: Book) -> None:
        """Take the book into use."""
        self._books[book.uid] = book
        self._running[book.uid] = book

    def find(self, uid: str) -> Book | None:
        """The book of an attempt, if there is one."""
        return self._books.get(uid)

    def running(self) -> list[Book]:
        """The attempts that have not ended."""
        return list(self._running.values())

    def end(self, book: Book, report: AttemptReport) -> None:
        """The attempt is over."""
        book.end = report
        self._running.pop(book.uid, None)

    def close(self, uid: str) -> None:
        """The end is acknowledged."""
        self._books.pop(uid, None)

    def __iter__(self) -> Iterator[Book]:
        return iter(list(self._books.values()))
