"""Derive the spans of a trace from the history: each row ends the spans of what it leaves."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from controlplane.contract.states import TaskState
from controlplane.contract.trace_context import attempt_span_id, read_trace, span_id_of
from controlplane.domain.state.states import TERMINAL

_FAILED = frozenset({TaskState.FAILED, TaskState.WORKER_FAILED, TaskState.UNSCHEDULABLE})


@dataclass(frozen=True, slots=True)
class SpanFacts:
    """A span that has ended. Ids are hexadecimal; `parent_id` is empty at the root of a trace."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    started_at: datetime
    ended_at: datetime
    is_failed: bool = False
    message: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HistoryRow:
    """A row of the history of a traced job, and what came before it.

    `entered_*`: the row that entered the state of the task before this one; None if that is the
    submission. `before_*`: the row before this one of the same attempt, if any. `placed_at`,
    `finished_at`, `released_at`: of the attempt. `releases`: whether it is the row of its release.
    """

    id: int
    trace: str
    job_id: int
    job_name: str
    submitted_at: datetime
    task_id: int | None
    task_name: str | None
    attempt_uid: UUID | None
    attempt_number: int | None
    cell: str | None
    from_state: int | None
    to_state: int | None
    attempt_state: int | None
    reason: str
    message: str
    at: datetime
    entered_id: int | None
    entered_at: datetime | None
    entered_uid: UUID | None
    entered_reason: str | None
    before_id: int | None
    before_at: datetime | None
    before_message: str | None
    before_is_phase: bool | None
    placed_at: datetime | None
    finished_at: datetime | None
    released_at: datetime | None
    releases: bool


def derive_spans(row: HistoryRow) -> Iterator[SpanFacts]:
    """Yield the spans that end with `row`."""
    if row.task_id is None:
        if _ends(row):
            yield _job_span(row)
        return
    if row.before_is_phase:
        yield _phase_span(row)
    if _enters(row):
        yield _state_span(row)
    if row.releases:
        yield from _attempt_spans(row)
    if _ends(row):
        yield _task_span(row)


def _enters(row: HistoryRow) -> bool:
    return row.to_state is not None and row.to_state != row.from_state


def _ends(row: HistoryRow) -> bool:
    return _enters(row) and row.to_state in TERMINAL


def _job_span(row: HistoryRow) -> SpanFacts:
    return _span(
        row,
        _job_id(row),
        read_trace(row.trace)[1],
        f"job {row.job_name}",
        row.submitted_at,
        row.at,
        _outcome(row, row.to_state),
    )


def _task_span(row: HistoryRow) -> SpanFacts:
    return _span(
        row,
        _id(row, "task", row.task_id),
        _job_id(row),
        f"task {row.task_name}",
        row.submitted_at,
        row.at,
        _outcome(row, row.to_state),
    )


def _state_span(row: HistoryRow) -> SpanFacts:
    """Return the span of the state that the task leaves; waiting is a child of the task."""
    assert row.from_state is not None
    uid = row.entered_uid if row.from_state != TaskState.PENDING else None
    started_at = row.submitted_at if row.entered_at is None else row.entered_at
    return _span(
        row,
        _state_id(row),
        _id(row, "task", row.task_id) if uid is None else _attempt_id(row, uid),
        TaskState(row.from_state).name.lower(),
        started_at,
        row.at,
        {"cellrun.reason": row.entered_reason or "submitted", "cellrun.left_by": row.reason},
    )


def _phase_span(row: HistoryRow) -> SpanFacts:
    assert row.before_at is not None
    return _span(
        row,
        _id(row, "row", row.before_id),
        _state_id(row),
        row.before_message or "phase",
        row.before_at,
        row.at,
        {},
    )


def _attempt_spans(row: HistoryRow) -> Iterator[SpanFacts]:
    """Yield the span of a released attempt, and that from its end to its release."""
    assert row.placed_at is not None
    assert row.released_at is not None
    uid = row.attempt_uid
    attempt_id = _attempt_id(row, uid)
    yield _span(
        row,
        attempt_id,
        _id(row, "task", row.task_id),
        f"attempt {row.attempt_number}",
        row.placed_at,
        row.released_at,
        _outcome(row, row.attempt_state),
    )
    if row.finished_at is not None:
        name, release_id = "release", _id(row, "release", uid)
        yield _span(row, release_id, attempt_id, name, row.finished_at, row.released_at, {})


def _span(
    row: HistoryRow,
    span_id: str,
    parent_id: str,
    name: str,
    started_at: datetime,
    ended_at: datetime,
    attributes: dict[str, Any],
) -> SpanFacts:
    """Return a span. A late report may have an earlier time than the row before it."""
    is_failed = attributes.get("cellrun.state") in {state.name for state in _FAILED}
    known = {
        "cellrun.job.id": row.job_id,
        "cellrun.job.name": row.job_name,
        "cellrun.task.id": row.task_id,
        "cellrun.attempt.uid": None if row.attempt_uid is None else str(row.attempt_uid),
        "cellrun.cell": row.cell,
        **attributes,
    }
    return SpanFacts(
        trace_id=read_trace(row.trace)[0],
        span_id=span_id,
        parent_id=parent_id,
        name=name,
        started_at=min(started_at, ended_at),
        ended_at=ended_at,
        is_failed=is_failed,
        message=row.message if is_failed else "",
        attributes={key: value for key, value in known.items() if value is not None},
    )


def _outcome(row: HistoryRow, state: int | None) -> dict[str, Any]:
    name = None if state is None else TaskState(state).name
    return {"cellrun.state": name, "cellrun.reason": row.reason}


def _id(row: HistoryRow, kind: str, key: object) -> str:
    return span_id_of(read_trace(row.trace)[0], kind, key)


def _job_id(row: HistoryRow) -> str:
    return _id(row, "job", row.job_id)


def _attempt_id(row: HistoryRow, uid: object) -> str:
    return attempt_span_id(read_trace(row.trace)[0], uid)


def _state_id(row: HistoryRow) -> str:
    """Return the id of the span of the state that lasted before `row`."""
    key = f"task {row.task_id}" if row.entered_id is None else row.entered_id
    return _id(row, "state", key)
