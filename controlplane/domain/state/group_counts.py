"""Update of the counts of groups after state changes of their tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from controlplane.contract.states import TaskState as S
from controlplane.domain.state.effects import ChangeTask, EndJob
from controlplane.domain.state.job_rollup import GroupRow, JobRow
from controlplane.domain.state.states import TERMINAL

Move = tuple[int, int, S, S, bool]
"""Job, group, from, to, and whether a dependency killed the task."""


@dataclass(frozen=True, slots=True)
class JobContext:
    """Facts about jobs besides the state changes of their tasks."""

    endings: Mapping[int, EndJob] = field(default_factory=dict)
    starts: Mapping[int, datetime] = field(default_factory=dict)
    unblocked: frozenset[int] = frozenset()

    def add_to(self, job: JobRow) -> JobRow:
        """Return the job with its start, its ending and its cleared flag."""
        job_id = job.job_id
        if job.started_at is None and job_id in self.starts:
            job = replace(job, started_at=self.starts[job_id])
        if job_id in self.unblocked:
            job = replace(job, waits_for_jobs=False)
        ending = self.endings.get(job_id)
        if ending is None or job.ending_as is not None or job.state in TERMINAL:
            return job
        return replace(
            job,
            ending_as=ending.state,
            ending_reason=ending.reason,
            failure_reason=ending.message or job.failure_reason,
        )


def first_starts(changes: Sequence[ChangeTask]) -> dict[int, datetime]:
    """Return the earliest start among `changes`, by job."""
    starts: dict[int, datetime] = {}
    for change in changes:
        if change.started_at is not None:
            known = starts.setdefault(change.job_id, change.started_at)
            starts[change.job_id] = min(known, change.started_at)
    return starts


def move_counts(groups: Mapping[int, list[GroupRow]], moves: Sequence[Move]) -> None:
    """Update the counts of the groups (by job, in place) by `moves`."""
    shifts: dict[int, dict[S, int]] = {}
    excused: dict[int, int] = {}
    for _, group_id, old, new, by_dependency in moves:
        if old is not new:
            shift = shifts.setdefault(group_id, {})
            shift[old] = shift.get(old, 0) - 1
            shift[new] = shift.get(new, 0) + 1
        if by_dependency:
            excused[group_id] = excused.get(group_id, 0) + 1
    for listed in groups.values():
        for index, row in enumerate(listed):
            shift = shifts.get(row.facts.group_id, {})
            if not shift:
                continue
            counts = dict(row.facts.counts)
            for state, amount in shift.items():
                counts[state] = counts.get(state, 0) + amount
            listed[index] = replace(
                row,
                facts=replace(row.facts, counts=counts),
                killed_by_dependency=row.killed_by_dependency + excused.get(row.facts.group_id, 0),
            )
