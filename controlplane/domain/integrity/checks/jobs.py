"""Invariants of jobs, groups and cells: derived states, counts and capacity."""

from collections import Counter
from collections.abc import Iterator

from controlplane.contract.states import TaskState as S
from controlplane.domain.integrity.rows import Finding, IntegrityRows, JobRecord
from controlplane.domain.state.gangs import GangGroupFacts, meets_minima
from controlplane.domain.state.rollup import GroupTally, JobTally, job_state
from controlplane.domain.state.states import JOB_STATES, OPEN, TERMINAL, Reason


def groups_complete(records: IntegrityRows) -> Iterator[Finding]:
    """INV-20."""
    for group in records.groups:
        indices = sorted(task.index for task in records.tasks_of_group.get(group.id, ()))
        is_apart = len(set(indices)) == len(indices) and set(indices) <= set(range(group.replicas))
        if len(indices) != group.task_count or not is_apart:
            yield f"group {group.id}", f"{group.task_count} tasks expected, there are {indices}"


def counts_right(records: IntegrityRows) -> Iterator[Finding]:
    """INV-21."""
    for group in records.groups:
        found = Counter(task.state for task in records.tasks_of_group.get(group.id, ()))
        stored = {state: group.counts[state] for state in S if group.counts[state]}
        if stored != dict(found) or sum(group.counts) != group.task_count:
            yield f"group {group.id}", f"counts {_names(stored)}, tasks {_names(found)}"


def excused_right(records: IntegrityRows) -> Iterator[Finding]:
    """INV-22."""
    excused: Counter[int] = Counter()
    for task_id, steps in records.steps_of_task.items():
        task = records.task_of.get(task_id)
        if task is not None and any(step.reason == Reason.DEPENDENCY_FAILED for step in steps):
            excused[task.group_id] += 1
    for group in records.groups:
        if group.killed_by_dependency != excused[group.id]:
            text = f"killed_by_dependency is {group.killed_by_dependency}, not {excused[group.id]}"
            yield f"group {group.id}", text


def follows_from_tasks(records: IntegrityRows) -> Iterator[Finding]:
    """INV-23."""
    for job in records.jobs:
        follows = job_state(_tally(job, records))
        if job.state not in JOB_STATES:
            yield f"job {job.id}", f"a job is never {job.state.name}"
        elif job.state in TERMINAL:
            wanted = job.ending_as or follows
            if job.state is not wanted:
                yield f"job {job.id}", f"{job.state.name}, should be {wanted.name}"
        elif follows in TERMINAL and job.ending_as is None:
            text = f"{job.state.name}, but its tasks decide {follows.name} and it is not ending"
            yield f"job {job.id}", text
        elif follows is S.RUNNING and job.state is not S.RUNNING:
            yield f"job {job.id}", f"{job.state.name}, but a task of it is or was active"


def ends_with_its_tasks(records: IntegrityRows) -> Iterator[Finding]:
    """INV-24."""
    for job in records.jobs:
        is_open = any(task.state in OPEN for task in records.tasks_of_job.get(job.id, ()))
        if is_open == (job.finished_at is not None):
            yield f"job {job.id}", f"finished at {job.finished_at}, tasks open: {is_open}"
        if (job.finished_at is not None) != (job.state in TERMINAL):
            yield f"job {job.id}", f"{job.state.name}, finished at {job.finished_at}"


def settled_without_attempts(records: IntegrityRows) -> Iterator[Finding]:
    """INV-25."""
    holding = {attempt.job_id for attempt in records.attempts if attempt.released_at is None}
    for job in records.jobs:
        if job.settled_at is None:
            continue
        if job.finished_at is None or job.settled_at < job.finished_at:
            yield f"job {job.id}", "settled before it was finished"
        if job.id in holding:
            yield f"job {job.id}", "settled, but an attempt of it is not released"


def placed_when_it_might(records: IntegrityRows) -> Iterator[Finding]:
    """INV-26."""
    for attempt in records.attempts:
        group, job = records.group_of.get(attempt.group_id), records.job_of.get(attempt.job_id)
        if group is None or job is None:
            continue
        if group.startable_at is None or attempt.created_at < group.startable_at:
            text = f"placed before group {group.name} might start"
            yield f"attempt {attempt.uid}", text
        if job.finished_at is not None and attempt.created_at > job.finished_at:
            yield f"attempt {attempt.uid}", f"placed after job {job.id} had ended"


def gangs_whole(records: IntegrityRows) -> Iterator[Finding]:
    """INV-27."""
    for job in records.jobs:
        if not job.coscheduled or job.is_bouncing or job.ending_as or job.state in TERMINAL:
            continue
        gang = [
            GangGroupFacts(
                Counter(task.state for task in records.tasks_of_group.get(group.id, ())),
                group.min_available,
                not group.at_most_once,
            )
            for group in records.groups_of_job.get(job.id, ())
        ]
        if any(group.movable for group in gang) and not meets_minima(gang, job.min_available):
            yield f"job {job.id}", "a gang below its minima, and it is not being requeued"


def blocked_not_startable(records: IntegrityRows) -> Iterator[Finding]:
    """INV-28."""
    blocked = {job.id for job in records.jobs if job.waits_for_jobs}
    for group in records.groups:
        if group.job_id in blocked and group.startable_at is not None:
            yield f"group {group.id}", f"may start, but job {group.job_id} waits for others"


def never_over_committed(records: IntegrityRows) -> Iterator[Finding]:
    """INV-30."""
    for cell in records.cells:
        for name, amount in sorted(cell.used.items()):
            if amount > cell.capacity.get(name, 0):
                text = f"{amount} of {cell.capacity.get(name, 0)} {name} are in use"
                yield f"cell {cell.id} ({cell.name})", text


def lease_of_its_incarnation(records: IntegrityRows) -> Iterator[Finding]:
    """INV-31."""
    for cell in records.cells:
        if (cell.lease_incarnation or "") != cell.incarnation:
            text = f"incarnation {cell.incarnation!r}, its lease's is {cell.lease_incarnation!r}"
            yield f"cell {cell.id} ({cell.name})", text


def _tally(job: JobRecord, records: IntegrityRows) -> JobTally:
    groups = tuple(
        GroupTally(
            counts=Counter(task.state for task in records.tasks_of_group.get(group.id, ())),
            min_available=group.min_available,
            killed_by_dependency=group.killed_by_dependency,
        )
        for group in records.groups_of_job.get(job.id, ())
    )
    return JobTally(
        groups=groups,
        min_available=job.min_available,
        max_task_failures=job.max_task_failures,
        explicit_minimum=job.explicit_minimum,
        ever_started=job.started_at is not None,
    )


def _names(counts: Counter[S] | dict[S, int]) -> dict[str, int]:
    return {state.name: count for state, count in sorted(counts.items())}
