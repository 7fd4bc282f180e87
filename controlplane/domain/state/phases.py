"""Phases that a report adds to the history of its attempt, each with its own time.

Each change has a number, and the attempt's row has the number of the newest change in the history.
Thus a repeated or late report adds nothing, and a gap shows how many changes were omitted.
"""

from dataclasses import dataclass
from datetime import UTC, datetime

from controlplane.contract.messages.phases import MAX_PHASES, PhaseKind
from controlplane.contract.messages.reports import AttemptReport
from controlplane.contract.states import TaskState
from controlplane.domain.state.effects import Step
from controlplane.domain.state.facts import AttemptFacts
from controlplane.domain.state.states import Reason

_REASONS = {
    PhaseKind.PHASE: Reason.BUILDING,
    PhaseKind.RUNNER: Reason.RUNNER_PHASE,
    PhaseKind.TRY: Reason.TRY_FAILED,
}
_LAST = " (the last phase that is kept)"


@dataclass(frozen=True, slots=True)
class PhaseStep:
    """A row of history to be added: a phase of the attempt and its time."""

    at: datetime
    reason: Reason
    message: str


def new_phases(
    report: AttemptReport, attempt: AttemptFacts, now: datetime
) -> tuple[PhaseStep, ...]:
    """Return the phases that `report` adds to the history of `attempt`, oldest first.

    Times are clamped to ascend from the creation of the attempt to `now`.
    """
    if not report.phases:
        return ()
    steps: list[PhaseStep] = []
    number, at = attempt.phase_number, attempt.created_at
    for change in report.phases:
        if change.number <= number:
            continue
        at = min(max(at, datetime.fromtimestamp(change.at, UTC)), now)
        if omitted := change.number - number - 1:
            steps.append(PhaseStep(at, Reason.PHASES_LEFT_OUT, _count(omitted)))
        number = change.number
        message = change.text + (_LAST if number == MAX_PHASES else "")
        steps.append(PhaseStep(at, _REASONS[change.kind], message))
    return tuple(steps)


def phase_number(report: AttemptReport) -> int | None:
    """Return the number of the newest change in `report`, or None if it has no changes."""
    return report.phases[-1].number if report.phases else None


class PhaseSequence:
    """Builds the steps of a task and its attempt, in order, from their current state."""

    def __init__(self, state: TaskState, ran_at: datetime | None) -> None:
        """`ran_at`: when the attempt became RUNNING, if that is new in the report."""
        self.state = state
        self.steps: list[Step] = []
        self._ran_at = None if state is TaskState.RUNNING else ran_at

    def add_phases(self, phases: tuple[PhaseStep, ...]) -> None:
        """Add the steps of phases, and of the start before the phases of a running attempt."""
        for item in phases:
            is_of_building = item.reason is Reason.BUILDING
            if self._ran_at is not None and item.at > self._ran_at and not is_of_building:
                self.start()
            state = self.state
            self.state = TaskState.BUILDING if state is TaskState.ASSIGNED else state
            attempt_state = self.state
            self.steps.append(
                Step(state, self.state, attempt_state, item.reason, item.at, item.message)
            )

    def start(self) -> None:
        """Add the step of the start, once."""
        if self._ran_at is not None:
            running = TaskState.RUNNING
            at = max(self._ran_at, self.steps[-1].at) if self.steps else self._ran_at
            self.steps.append(Step(self.state, running, running, Reason.STARTED, at))
            self.state, self._ran_at = running, None


def phase_steps(
    task_state: TaskState, attempt_state: TaskState, phases: tuple[PhaseStep, ...]
) -> tuple[Step, ...]:
    """Return the steps of phases of an attempt that keeps its state."""
    return tuple(
        Step(task_state, task_state, attempt_state, item.reason, item.at, item.message)
        for item in phases
    )


def _count(number: int) -> str:
    return "1 phase" if number == 1 else f"{number} phases"
