"""Invariants of the history: connected, complete, legal, and ended by a terminal state."""

from collections.abc import Iterable, Iterator

from controlplane.contract.states import TaskState as S
from controlplane.domain.integrity.invariant import Finding, invariant
from controlplane.domain.integrity.rows import IntegrityRows, JobRecord, TaskRecord
from controlplane.domain.state.states import TERMINAL, Reason
from controlplane.domain.state.transitions import TRANSITIONS

_APPLY = "commands.state.apply (compare-and-set under the job's lock)"
_REASONS = {reason.value for reason in Reason}


@invariant(
    40,
    "The history of a task or job is connected: each change begins in the state in which the"
    " previous one ended, and the last one ends in the present state.",
    upheld_by=_APPLY,
)
def connected(rows: IntegrityRows) -> Iterator[Finding]:
    for task in rows.tasks:
        yield from _gaps(task, rows)
    for job in rows.jobs:
        yield from _gaps(job, rows)


@invariant(
    41,
    "Terminal states are final: no task or job ever left one.",
    upheld_by="domain.state.transitions",
)
def final(rows: IntegrityRows) -> Iterator[Finding]:
    for step in rows.steps:
        if step.from_state in TERMINAL and step.to_state is not step.from_state:
            yield Finding(step, f"left {_name(step.from_state)} for {_name(step.to_state)}")


@invariant(
    42,
    "Every change of a task has a row in the transition table.",
    upheld_by="domain.state.transitions",
)
def legal(rows: IntegrityRows) -> Iterator[Finding]:
    for step in rows.steps:
        if step.task_id is None or step.from_state in (None, step.to_state):
            continue
        if (step.from_state, step.to_state) not in _LEGAL:
            text = f"no event leads from {_name(step.from_state)} to {_name(step.to_state)}"
            yield Finding(step, text)


@invariant(43, "Every change has a known reason.", upheld_by="domain.state.states.Reason")
def reasoned(rows: IntegrityRows) -> Iterator[Finding]:
    for step in rows.steps:
        if step.reason not in _REASONS:
            yield Finding(step, f"step {step.id} has the unknown reason {step.reason!r}")


@invariant(
    44,
    "The history contains the placement and the end of every attempt.",
    upheld_by=_APPLY,
)
def attempts_recorded(rows: IntegrityRows) -> Iterator[Finding]:
    placed = {step.attempt_uid for step in rows.steps if step.reason == Reason.PLACED}
    ended = {(step.attempt_uid, step.attempt_state) for step in rows.steps}
    for attempt in rows.attempts:
        if attempt.uid not in placed:
            yield Finding(attempt, "its placement is not in the history")
        if attempt.state in TERMINAL and (attempt.uid, attempt.state) not in ended:
            yield Finding(attempt, "its end is not in the history")


def _legal_pairs() -> Iterable[tuple[S, S]]:
    for (state, _), rule in TRANSITIONS.items():
        yield state, rule.task
        if rule.budget is not None or rule.requeue:
            yield state, S.PENDING


_LEGAL = frozenset(_legal_pairs())


def _gaps(row: TaskRecord | JobRecord, rows: IntegrityRows) -> Iterator[Finding]:
    # A task is PENDING from its submission, which is recorded in the history of its job.
    state = S.PENDING if isinstance(row, TaskRecord) else None
    for step in rows.steps_of[str(row)]:
        if step.from_state is not state:
            text = f"step {step.id} comes from {_name(step.from_state)}, not from {_name(state)}"
            yield Finding(row, text)
        state = step.to_state
    if state is not row.state:
        yield Finding(row, f"its history ends at {_name(state)}, it is {row.state.name}")


def _name(state: S | None) -> str:
    return "nothing" if state is None else state.name
