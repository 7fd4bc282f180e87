"""What attempts pass through on their way is noted at once, and reported in company.

A phase of BUILDING waits for what comes next, so that a short life still is one report; what stays
in a phase is reported after a moment. Every change is in the journal before it is reported.
"""

from collections.abc import Callable

from controlplane.contract.phases import PhaseKind
from controlplane.contract.reports import AttemptReport
from controlplane.contract.states import Phase, TaskState
from workers.attempt.events import Building, Reconciled, TryFailed
from workers.books import Book, Books
from workers.happenings import Moment
from workers.journal import Journal

# A phase that lasts longer is reported while it lasts. A container that is created from an image
# that is there, and started, takes about half of it.
QUIET_SECONDS = 0.5
# A process that was killed so often while it handled an attempt, before that got on, blames it.
MAX_CRASHES = 2
# If even to stop it kills the process, so often, it is given up unseen.
MAX_BLAMED = 2
# How far an attempt got that a process was killed with. The last: it runs.
STAGES = {Phase.PULLING: 1, Phase.CREATING: 2, Phase.CHECKING: 3}


class Progress:
    """The changes of the attempts of one cell that go on."""

    def __init__(
        self, journal: Journal, books: Callable[[], Books], say: Callable[[AttemptReport], None]
    ) -> None:
        self._journal = journal
        self._books = books
        self._say = say
        self._waiting: dict[str, float] = {}  # by uid, when it is reported at the latest

    @property
    def wakes_at(self) -> float:
        """When the next report is due, in seconds since boot."""
        return next(iter(self._waiting.values()), float("inf"))

    def note(self, book: Book, event: Building | TryFailed | Reconciled, now: Moment) -> None:
        """Take note of a change; what a runner keeps is reported at once."""
        match event:
            case Building():
                self._note_stage(book, event.phase)
                book.enter(event.phase, event.progress, now.wall if event.at is None else event.at)
                book.move(TaskState.BUILDING)
            case TryFailed():
                book.note(PhaseKind.TRY, event.text, event.at)
            case Reconciled():
                if event.phase != book.plugin_phase:
                    at = now.wall if event.at is None else event.at
                    book.note(PhaseKind.RUNNER, event.phase, at)
                book.plugin_phase, book.plugin_state = event.phase, event.state
                self.report(book)
                return
        self._waiting.setdefault(book.uid, now.boot + QUIET_SECONDS)

    def report(self, book: Book) -> None:
        """Report all facts of an attempt that goes on."""
        self._waiting.pop(book.uid, None)
        if book.phase_count > book.phases_kept:
            fresh = tuple(change for change in book.phases if change.number > book.phases_kept)
            self._journal.add_phases(book.uid, fresh)
            book.phases_kept = book.phase_count
        self._say(book.report())

    def report_due(self, boot: float) -> None:
        """Report what waited long enough at `boot` seconds."""
        while self._waiting and self.wakes_at <= boot:
            uid = next(iter(self._waiting))
            book = self._books().find(uid)
            if book is None or book.end is not None:
                del self._waiting[uid]
            else:
                self.report(book)

    def forget(self, uid: str, number: int) -> None:
        """Let go of the changes up to `number`, which the control plane has."""
        book = self._books().find(uid)
        if book is not None:
            book.phases = tuple(change for change in book.phases if change.number > number)
            self._journal.drop_phases(uid, number)

    def _note_stage(self, book: Book, phase: Phase) -> None:
        """A process that is killed while the attempt gets on is not killed by it."""
        item, stage = self._journal.memory.attempts.get(book.uid), STAGES.get(phase, 0)
        if item is not None and item.crashes and stage > item.stage and not book.is_blamed:
            self._journal.reach(book.uid, stage)
