"""Invariants of the history: connected, complete, legal, and closed after a terminal state."""

from collections.abc import Iterable, Iterator, Sequence

from controlplane.contract.states import TaskState as S
from controlplane.domain.integrity.rows import Finding, IntegrityRows, StepRecord
from controlplane.domain.state.states import TERMINAL, Reason
from controlplane.domain.state.transitions import TRANSITIONS

_REASONS = {reason.value for reason in Reason}


def connected(records: IntegrityRows) -> Iterator[Finding]:
    """INV-40."""
    for task in records.tasks:
        steps = records.steps_of_task.get(task.id, [])
        # A task is PENDING from the submission of its job, which is in the job's history.
        yield from _gaps(f"task {task.id}", steps, begins=S.PENDING, ends=task.state)
    for job in records.jobs:
        steps = records.steps_of_job.get(job.id, [])
        yield from _gaps(f"job {job.id}", steps, begins=None, ends=job.state)


def final(records: IntegrityRows) -> Iterator[Finding]:
    """INV-41."""
    for step in records.steps:
        if step.from_state in TERMINAL and step.to_state is not step.from_state:
            yield _subject(step), f"left {_name(step.from_state)} for {_name(step.to_state)}"


def legal(records: IntegrityRows) -> Iterator[Finding]:
    """INV-42."""
    for step in records.steps:
        if step.task_id is None or step.from_state in (None, step.to_state):
            continue
        if (step.from_state, step.to_state) not in _LEGAL:
            text = f"no event leads from {_name(step.from_state)} to {_name(step.to_state)}"
            yield _subject(step), text


def reasoned(records: IntegrityRows) -> Iterator[Finding]:
    """INV-43."""
    for step in records.steps:
        if step.reason not in _REASONS:
            yield _subject(step), f"step {step.id} has the unknown reason {step.reason!r}"


def attempts_recorded(records: IntegrityRows) -> Iterator[Finding]:
    """INV-44."""
    placed = {step.attempt_uid for step in records.steps if step.reason == Reason.PLACED}
    ended = {
        (step.attempt_uid, step.attempt_state)
        for step in records.steps
        if step.attempt_state in TERMINAL
    }
    for attempt in records.attempts:
        if attempt.uid not in placed:
            yield f"attempt {attempt.uid}", "its placement is not in the history"
        if attempt.state in TERMINAL and (attempt.uid, attempt.state) not in ended:
            yield f"attempt {attempt.uid}", "its end is not in the history"


def _legal_pairs() -> Iterable[tuple[S, S]]:
    for (state, _), rule in TRANSITIONS.items():
        yield state, rule.task
        if rule.budget is not None or rule.requeue:
            yield state, S.PENDING


_LEGAL = frozenset(_legal_pairs())


def _gaps(
    subject: str, steps: Sequence[StepRecord], *, begins: S | None, ends: S
) -> Iterator[Finding]:
    state = begins
    for step in steps:
        if step.from_state is not state:
            text = f"step {step.id} comes from {_name(step.from_state)}, not from {_name(state)}"
            yield subject, text
        state = step.to_state
    if state is not ends:
        yield subject, f"its history ends at {_name(state)}, it is {ends.name}"


def _subject(step: StepRecord) -> str:
    return f"job {step.job_id}" if step.task_id is None else f"task {step.task_id}"


def _name(state: S | None) -> str:
    return "nothing" if state is None else state.name
