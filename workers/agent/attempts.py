"""The cell's books: what it knows of each attempt in its charge."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.contract.codec import clean_text
from controlplane.contract.messages.orders import GroupSpec, RunAttempt, StopAttempt
from controlplane.contract.messages.phases import (
    MAX_PHASES,
    PHASE_CHARS,
    PhaseChange,
    PhaseKind,
    shorten,
)
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import Phase, TaskState


@dataclass(slots=True)
class AttemptEntry:
    """One attempt: what was ordered, and the facts so far.

    `phases`: the changes that are not acknowledged. `phase_count`: how many there were in all, of
    which so many as `phases_kept` are in the journal.
    """

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
    is_moving: bool = False  # the cell is leaving and stopped it: it will run elsewhere
    end: AttemptReport | None = None
    is_blamed: bool = False  # handling it killed the cell's process, again and again
    phases: tuple[PhaseChange, ...] = ()
    phase_count: int = 0
    phases_kept: int = 0
    phased_at: float = 0.0

    @property
    def uid(self) -> str:
        """The attempt's uid."""
        return self.run.uid

    @property
    def ids(self) -> dict[str, Any]:
        """The ids under which its log lines are found."""
        return {"job": self.spec.job_id, "task": self.run.task_id, "attempt": self.uid}

    def order_to_move(self, *, force: bool = False) -> StopAttempt:
        """The cell's own order to end it here."""
        return StopAttempt(self.uid, "drained", self.spec.stop_grace_seconds, force)

    def move(self, state: TaskState, *, started_at: float | None = None) -> None:
        """The attempt got on; it never goes back from RUNNING to BUILDING."""
        if self.state is not TaskState.RUNNING:
            self.state = state
        if started_at is not None:
            self.started_at = started_at

    def enter(self, phase: Phase, progress: int | None, at: float) -> None:
        """Note the phase of BUILDING that the attempt is in since `at`."""
        if phase is not self.phase:
            self.note(PhaseKind.PHASE, phase, at)
        self.phase, self.progress = phase, progress

    def note(self, kind: PhaseKind, text: str, at: float) -> None:
        """Add a change of phase to the story of the attempt; its instants never go back."""
        if self.phase_count >= MAX_PHASES:
            return
        self.phase_count += 1
        self.phased_at = max(self.phased_at, at)
        text = clean_text(text, PHASE_CHARS)
        change = PhaseChange(self.phase_count, self.phased_at, kind, text)
        self.phases = shorten((*self.phases, change))

    def recall(self, phases: tuple[PhaseChange, ...], count: int) -> None:
        """Take over what an earlier process of the cell noted."""
        self.phases, self.phase_count, self.phases_kept = phases, count, count
        for change in phases:
            self.phased_at = change.at
            if change.kind is PhaseKind.PHASE:
                self.phase = Phase(change.text)
            elif change.kind is PhaseKind.RUNNER:
                self.plugin_phase = change.text

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
            phases=self.phases,
        )


class AttemptTable:
    """The books of all attempts that are under way or whose end is not acknowledged."""

    def __init__(self) -> None:
        self._books: dict[str, AttemptEntry] = {}
        self._running: dict[str, AttemptEntry] = {}

    @staticmethod
    def prepare(run: RunAttempt, spec: GroupSpec) -> AttemptEntry:
        """A book that is not in use yet."""
        return AttemptEntry(run, spec)

    def open(self, run: RunAttempt, spec: GroupSpec) -> AttemptEntry:
        """A new book, in use."""
        book = AttemptEntry(run, spec)
        self.add(book)
        return book

    def add(self, book: AttemptEntry) -> None:
        """Take the book into use."""
        self._books[book.uid] = book
        self._running[book.uid] = book

    def find(self, uid: str) -> AttemptEntry | None:
        """The book of an attempt, if there is one."""
        return self._books.get(uid)

    def running(self) -> list[AttemptEntry]:
        """The attempts that have not ended."""
        return list(self._running.values())

    def end(self, book: AttemptEntry, report: AttemptReport) -> None:
        """The attempt is over."""
        book.end = report
        self._running.pop(book.uid, None)

    def close(self, uid: str) -> None:
        """The end is acknowledged."""
        self._books.pop(uid, None)

    def __iter__(self) -> Iterator[AttemptEntry]:
        return iter(list(self._books.values()))
