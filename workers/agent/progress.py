"""What attempts pass through on their way is noted at once, and reported in company.

A phase of BUILDING waits for what comes next, so that a short life still is one report; what stays
in a phase is reported after a moment. Of many attempts that wait in the cell for their turn, a few
are reported at a time: a line of thousands must not cost a message more for each of them. Every
change is in the journal before it is reported.
"""

from collections.abc import Callable

from controlplane.contract.messages.phases import PhaseKind
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import Phase
from workers.agent.inputs import ClockReading
from workers.attempt.events import BuildingEvent, ReconciledEvent, StageFailedEvent
from workers.cell_attempt import CellAttempt
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

    def __init__(self, journal: CellJournal, send: Callable[[AttemptReport], None]) -> None:
        self._journal = journal
        self._send = send
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
        record: CellAttempt,
        event: BuildingEvent | StageFailedEvent | ReconciledEvent,
        now: ClockReading,
    ) -> None:
        """Take note of a change; what a runner keeps is reported at once."""
        match event:
            case BuildingEvent():
                self._note_stage(record, event.phase)
                record.enter(
                    event.phase, event.progress, now.wall if event.at is None else event.at
                )
            case StageFailedEvent():
                record.note(PhaseKind.TRY, event.text, event.at)
            case ReconciledEvent():
                if event.phase != record.plugin_phase:
                    at = now.wall if event.at is None else event.at
                    record.note(PhaseKind.RUNNER, event.phase, at)
                record.plugin_phase, record.plugin_state = event.phase, event.state
                self.report(record)
                return
        due = now.boot + QUIET_SECONDS
        is_late = record.run.start_before - now.wall < LATE_ORDER_SECONDS
        if isinstance(event, BuildingEvent) and event.phase is Phase.PREPARING and not is_late:
            if record.uid not in self._waiting:
                self._preparing.setdefault(record.uid, due)
        else:
            self._preparing.pop(record.uid, None)
            self._waiting.setdefault(record.uid, due)

    def report(self, record: CellAttempt) -> None:
        """Report all facts of an attempt that has not ended."""
        self._waiting.pop(record.uid, None)
        self._preparing.pop(record.uid, None)
        self._journal.save_phases(record)
        self._send(record.report())

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
        record = self._journal.find(uid)
        if record is None or record.end is not None:
            return False
        self.report(record)
        return True

    def _note_stage(self, record: CellAttempt, phase: Phase) -> None:
        """A process that is killed while the attempt gets on is not killed by it."""
        stage = STAGES.get(phase, 0)
        if record.crashes and stage > record.stage and not record.is_blamed:
            self._journal.reach(record, stage)


def _first_due(line: dict[str, float]) -> float:
    return next(iter(line.values()), float("inf"))
