"""A cell's record of an attempt: what its journal restores, and what this process has observed."""

from collections.abc import Mapping
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
    unite,
)
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import Phase, TaskState


@dataclass(slots=True)
class CellAttempt:
    """One attempt. Only journal entries change the fields of the first block (`JournalState`).

    `is_moving`: the cell is leaving and has stopped the attempt, which will run elsewhere.
    `crashes`: kills of a cell process while it handled the attempt, since the last progress or
    orderly end of a process. `stage`: the progress at that time.
    `phases`: changes of phase that may not be acknowledged, and the newest of each kind.
    `phase_count`: the number of the newest of them.
    """

    run: RunAttempt
    spec: GroupSpec
    started_at: float | None = None
    container_id: str | None = None
    stop: StopAttempt | None = None
    is_moving: bool = False
    end: AttemptReport | None = None
    crashes: int = 0
    stage: int = 0
    phases: tuple[PhaseChange, ...] = ()
    phase_count: int = 0

    # Observed by this process; a successor observes it again.
    state: TaskState = TaskState.ASSIGNED
    phase: Phase | None = None
    progress: int | None = None
    addresses: Mapping[str, str] | None = None
    plugin_phase: str | None = None
    plugin_state: Mapping[str, Any] | None = None
    is_blamed: bool = False  # handling it killed the cell's process repeatedly
    unsaved_phases: tuple[PhaseChange, ...] = ()  # changes that are not in the journal yet
    acked_phase: int = 0  # number of the newest acknowledged change

    @property
    def uid(self) -> str:
        """The attempt's uid."""
        return self.run.uid

    @property
    def ids(self) -> dict[str, Any]:
        """The ids that identify the attempt in log lines."""
        return {"job": self.spec.job_id, "task": self.run.task_id, "attempt": self.uid}

    @property
    def reportable_phases(self) -> tuple[PhaseChange, ...]:
        """The changes of phase that the control plane has not acknowledged."""
        unacked = [change for change in self.phases if change.number > self.acked_phase]
        return shorten((*unacked, *self.unsaved_phases))

    def order_to_move(self, *, force: bool = False) -> StopAttempt:
        """Return the cell's own order to stop it here."""
        return StopAttempt(self.uid, "drained", self.spec.stop_grace_seconds, force)

    def enter(self, phase: Phase, progress: int | None, at: float) -> None:
        """Note that the attempt is in a phase of BUILDING since `at`, unless it runs already."""
        if phase is not self.phase:
            self.note(PhaseKind.PHASE, phase, at)
        self.phase, self.progress = phase, progress
        if self.state is not TaskState.RUNNING:
            self.state = TaskState.BUILDING

    def note(self, kind: PhaseKind, text: str, at: float) -> None:
        """Add a change of phase, not earlier than the one before."""
        newest = [*self.phases[-1:], *self.unsaved_phases[-1:]]
        number = max([self.phase_count, *(change.number for change in newest)]) + 1
        if number > MAX_PHASES:
            return
        at = max([at, *(change.at for change in newest)])
        change = PhaseChange(number, at, kind, clean_text(text, PHASE_CHARS))
        self.unsaved_phases = shorten((*self.unsaved_phases, change))

    def apply_start(self, at: float, container_id: str | None) -> None:
        """Set that the container runs since `at`."""
        self.state, self.started_at, self.container_id = TaskState.RUNNING, at, container_id

    def apply_crash(self) -> None:
        """Count a kill of a process before the attempt made progress."""
        self.crashes += 1

    def apply_reach(self, stage: int) -> None:
        """Set the stage of progress, and reset the count of kills."""
        self.crashes, self.stage = 0, stage

    def apply_move(self) -> None:
        """Set that the leaving cell has stopped the attempt."""
        self.is_moving = True

    def apply_phases(self, count: int, changes: tuple[PhaseChange, ...]) -> None:
        """Add journaled changes of phase; `count` is the number of the newest."""
        self.phases = shorten(unite(self.phases, changes))
        self.phase_count = count
        self.unsaved_phases = tuple(c for c in self.unsaved_phases if c.number > count)
        for change in changes:
            if change.kind is PhaseKind.PHASE:
                self.phase = Phase(change.text)
            elif change.kind is PhaseKind.RUNNER:
                self.plugin_phase = change.text

    def drop_phases(self, number: int) -> None:
        """Forget the changes up to `number`, which are acknowledged.

        The newest of each kind stays, because a successor compares the next change with it.
        """
        self.acked_phase = number
        newest = {change.kind: change.number for change in self.phases}
        self.phases = tuple(
            change
            for change in self.phases
            if change.number > number or change.number == newest[change.kind]
        )

    def report(self) -> AttemptReport:
        """Return a report of all facts so far, without a number."""
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
            phases=self.reportable_phases,
        )
