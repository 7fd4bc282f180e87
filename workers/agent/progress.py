"""What attempts pass through on their way is noted at once, and reported in company.

A phase of BUILDING waits for what comes next, so that a short life still is one report; what stays
in a phase is reported after a moment. Of many attempts that wait in the cell for their turn, a few
are reported at a time: a line of thousands must not cost a message more for each of them. Every
change is in the journal before it is reported.
"""

from collections.abc import Callable

from controlplane.contract.messages.phases import PhaseKind
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import Phase, TaskState
from workers.agent.attempts import AttemptEntry, AttemptTable
from workers.agent.inputs import ClockReading
from workers.attempt.events import BuildingEvent, ReconciledEvent, StageFailedEvent
from workers.journal import CellJournal

# A phase that lasts longer is reported while it lasts. A container that is created from an image
# that is there, and started, takes about half of it.
QUIET_SECONDS = 0.5
# Attempts in `preparing` that are reported at once, each QUIET_SECONDS; one that waits for longer
# than LATEST_SECONDS is reported whatever their number.
MAX_PREPARING = 25
LATEST_SECONDS = 15.0
# An order that has less than this until `start_before` is reported like a later phase: the control
# plane takes back what it takes for unanswered.
LATE_ORDER_SECONDS = 2 * LATEST_SECONDS
# A process that was killed so often while it handled an attempt, before that got on, blames it.
MAX_CRASHES = 2
# If even to stop it kills the process, so often, it is given up unseen.
MAX_BLAMED = 2
# How far an attempt got that a process was killed with. The last: it runs.
STAGES = {Phase.PULLING: 1, Phase.CREATING: 2, Phase.CHECKING: 3}


class Progress:
    """The changes of the attempts of one cell that have not ended."""

    def __init__(
        self,
        journal: CellJournal,
        books: Callable[[], AttemptTable],
        say: Callable[[AttemptReport], None],
    ) -> None:
        self._journal = journal
        self._books = books
        self._say = say
        # By uid, when it is due; the first is due first.
        self._waiting: dict[str, float] = {}
        self._preparing: dict[str, float] = {}  # those with no later phase than that
        self._next_preparing = 0.0  # before then none of these is reported

    @property
    def wakes_at(self) -> float:
        """When the next report is due, in seconds since boot."""
        return min(_first_due(self._waiting), self._preparing_due)

    @property
    def _preparing_due(self) -> float:
        return max(_first_due(self._preparing), self._next_preparing)

    def note(
        self,
        book: AttemptEntry,
        event: BuildingEvent | StageFailedEvent | ReconciledEvent,
        now: ClockReading,
    ) -> None:
        """Take note of a change; what a runner keeps is reported at once."""
        match event:
            case BuildingEvent():
                self._note_stage(book, event.phase)
                book.enter(event.phase, event.progress, now.wall if event.at is None else event.at)
                book.move(TaskState.BUILDING)
            case StageFailedEvent():
                book.note(PhaseKind.TRY, event.text, event.at)
            case ReconciledEvent():
                if event.phase != book.plugin_phase:
                    at = now.wall if event.at is None else event.at
                    book.note(PhaseKind.RUNNER, event.phase, at)
                book.plugin_phase, book.plugin_state = event.phase, event.state
                self.report(book)
                return
        due = now.boot + QUIET_SECONDS
        is_late = book.run.start_before - now.wall < LATE_ORDER_SECONDS
        if isinstance(event, BuildingEvent) and event.phase is Phase.PREPARING and not is_late:
            if book.uid not in self._waiting:
                self._preparing.setdefault(book.uid, due)
        else:
            self._preparing.pop(book.uid, None)
            self._waiting.setdefault(book.uid, due)

    def report(self, book: AttemptEntry) -> None:
        """Report all facts of an attempt that has not ended."""
        self._waiting.pop(book.uid, None)
        self._preparing.pop(book.uid, None)
        if book.phase_count > book.phases_kept:
            fresh = tuple(change for change in book.phases if change.number > book.phases_kept)
            self._journal.add_phases(book.uid, fresh)
            book.phases_kept = book.phase_count
        self._say(book.report())

    def report_due(self, boot: float) -> None:
        """Report what waited long enough at `boot` seconds."""
        while _first_due(self._waiting) <= boot:
            self._report_first(self._waiting)
        while _first_due(self._preparing) + LATEST_SECONDS <= boot:
            self._report_first(self._preparing)
        if self._preparing_due > boot:
            return
        reported = 0
        while reported < MAX_PREPARING and _first_due(self._preparing) <= boot:
            reported += self._report_first(self._preparing)
        self._next_preparing = boot + QUIET_SECONDS

    def report_all(self) -> None:
        """Report whatever waits."""
        for line in (self._waiting, self._preparing):
            while line:
                self._report_first(line)

    def _report_first(self, line: dict[str, float]) -> bool:
        """Take the first attempt out of `line`; return whether there was something to report."""
        uid = next(iter(line))
        del line[uid]
        book = self._books().find(uid)
        if book is None or book.end is not None:
            return False
        self.report(book)
        return True

    def forget(self, uid: str, number: int) -> None:
        """Let go of the changes up to `number`, which the control plane has."""
        book = self._books().find(uid)
        if book is not None:
            book.phases = tuple(change for change in book.phases if change.number > number)
            self._journal.drop_phases(uid, number)

    def _note_stage(self, book: AttemptEntry, phase: Phase) -> None:
        """A process that is killed while the attempt gets on is not killed by it."""
        item, stage = self._journal.memory.attempts.get(book.uid), STAGES.get(phase, 0)
        if item is not None and item.crashes and stage > item.stage and not book.is_blamed:
            self._journal.reach(book.uid, stage)


def _first_due(line: dict[str, float]) -> float:
    return next(iter(line.values()), float("inf"))
