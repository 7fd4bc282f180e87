"""Record changes of attempts at once, and report them together.

The report of a BUILDING phase is delayed, so that a short attempt needs only one report; a longer
phase is reported after a moment. Attempts that wait in the cell for their turn are reported a few
at a time, so that a queue of thousands does not add a message for each. Every change is in the
journal before it is reported.
"""

from collections.abc import Callable

from controlplane.contract.messages.phases import PhaseKind
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import Phase
from workers.agent.inputs import ClockReading
from workers.attempt.events import BuildingEvent, ReconciledEvent, StageFailedEvent
from workers.cell_attempt import CellAttempt
from workers.journal import CellJournal

# A phase that lasts longer is reported before it ends. Creating and starting a container from an
# existing image takes about half of this.
QUIET_SECONDS = 0.5
# Attempts in `preparing` that are reported in each interval of QUIET_SECONDS. Attempts that wait
# for longer than LATEST_SECONDS are reported regardless of their number.
MAX_PREPARING = 25
LATEST_SECONDS = 15.0
# Orders that are due sooner are reported like later phases: the control plane would withdraw an
# order without a report.
LATE_ORDER_SECONDS = 2 * LATEST_SECONDS
# Kills of the cell's process while it handled an attempt, without progress, before it is blamed.
MAX_CRASHES = 2
# Further kills while stopping a blamed attempt, before it is given up without an inspection.
MAX_BLAMED = 2
# Stages of progress by phase; the last one means that the container runs.
STAGES = {Phase.PULLING: 1, Phase.CREATING: 2, Phase.CHECKING: 3}


class Progress:
    """The changes of the attempts of one cell that have not ended."""

    def __init__(self, journal: CellJournal, send: Callable[[AttemptReport], None]) -> None:
        self._journal = journal
        self._send = send
        # The time when each report is due, by uid, in order.
        self._waiting: dict[str, float] = {}
        self._preparing: dict[str, float] = {}  # attempts in `preparing`
        self._next_preparing = 0.0  # the time of their next reports

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
        """Record a change; the state of a runner is reported at once."""
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
        """Send the reports that are due at `boot` seconds."""
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
        """Send all waiting reports."""
        for queue in (self._waiting, self._preparing):
            while queue:
                self._report_first(queue)

    def _report_first(self, queue: dict[str, float]) -> bool:
        """Take the first attempt out of `line`; return whether there was something to report."""
        uid = next(iter(queue))
        del queue[uid]
        record = self._journal.find(uid)
        if record is None or record.end is not None:
            return False
        self.report(record)
        return True

    def _note_stage(self, record: CellAttempt, phase: Phase) -> None:
        """Record progress, which clears the suspicion that the attempt kills the process."""
        stage = STAGES.get(phase, 0)
        if record.crashes and stage > record.stage and not record.is_blamed:
            self._journal.reach(record, stage)


def _first_due(queue: dict[str, float]) -> float:
    return next(iter(queue.values()), float("inf"))
