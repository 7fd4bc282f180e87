"""Update the counts of groups after state changes of their tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from controlplane.contract.states import TaskState as S
from controlplane.domain.state.effects import ChangeTask, EndJob
from controlplane.domain.state.job_rollup import GroupRow, JobRow
from controlplane.domain.state.states import TERMINAL

Move = tuple[int, int, S, S, bool]
"""Job, group, old state, new state, and whether a dependency killed the task."""


@dataclass(frozen=True, slots=True)
class JobContext:
    """Changes of jobs other than the state changes of their tasks, by job."""

    endings: Mapping[int, EndJob] = field(default_factory=dict)
    starts: Mapping[int, datetime] = field(default_factory=dict)
    unblocked: frozenset[int] = frozenset()

    def add_to(self, job: JobRow) -> JobRow:
        """Return the job with its start, its ending, and without `waits_for_jobs` if unblocked."""
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
            earliest = starts.setdefault(change.job_id, change.started_at)
            starts[change.job_id] = min(earliest, change.started_at)
    return starts


def move_counts(groups: Mapping[int, list[GroupRow]], moves: Sequence[Move]) -> None:
    """Update the counts of the groups (by job) in place."""
    deltas: dict[int, dict[S, int]] = {}
    excused: dict[int, int] = {}
    for _, group_id, old, new, by_dependency in moves:
        if old is not new:
            delta = deltas.setdefault(group_id, {})
            delta[old] = delta.get(old, 0) - 1
            delta[new] = delta.get(new, 0) + 1
        if by_dependency:
            excused[group_id] = excused.get(group_id, 0) + 1
    for rows in groups.values():
        for index, row in enumerate(rows):
            delta = deltas.get(row.facts.group_id, {})
            if not delta:
                continue
            counts = dict(row.facts.counts)
            for state, amount in delta.items():
                counts[state] = counts.get(state, 0) + amount
            rows[index] = replace(
                row,
                facts=replace(row.facts, counts=counts),
                killed_by_dependency=row.killed_by_dependency + excused.get(row.facts.group_id, 0),
            )
