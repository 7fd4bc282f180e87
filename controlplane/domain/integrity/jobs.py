"""Invariants of jobs, groups and cells: derived states, counts, dependencies and capacity."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from controlplane.contract.states import TaskState as S
from controlplane.domain.integrity.invariant import Finding, Repair, invariant
from controlplane.domain.integrity.rows import DependencyRecord, IntegrityRows, JobRecord
from controlplane.domain.state.dependencies import DependencyStatus, job_dependency_status
from controlplane.domain.state.facts import GroupFacts
from controlplane.domain.state.gangs import meets_minima
from controlplane.domain.state.job_rollup import GroupRow, JobRow, gang_of, roll_job
from controlplane.domain.state.states import JOB_STATES, OPEN, TERMINAL

_APPLY = "commands.state.apply (compare-and-set under the job's lock)"


@invariant(
    20,
    "A group has `task_count` tasks, each with a different index below its replicas: all indices,"
    " except in a rerun.",
    upheld_by="commands.jobs.insert; constraint task_index_unique_in_group",
)
def groups_complete(rows: IntegrityRows) -> Iterator[Finding]:
    for group in rows.groups:
        indices = sorted(task.index for task in rows.tasks_of_group[group.id])
        is_apart = len(set(indices)) == len(indices) and set(indices) <= set(range(group.replicas))
        if len(indices) != group.task_count or not is_apart:
            yield Finding(group, f"{group.task_count} tasks expected, there are {indices}")


@invariant(
    21,
    "The counts of a group equal the number of its tasks in each state.",
    upheld_by=_APPLY,
    repair="the tasks are counted again",
)
def counts_right(rows: IntegrityRows) -> Iterator[Finding]:
    for group in rows.groups:
        found = [rows.counted(group).counts.get(S(n), 0) if n else 0 for n in range(len(S) + 1)]
        if list(group.counts) != found:
            text = f"counts {_in_words(group.counts)}, its tasks are {_in_words(found)}"
            yield Finding(group, text, Repair.COUNT, group.id)


@invariant(
    22,
    "`killed_by_dependency` of a group counts its tasks that a dependency killed.",
    upheld_by=_APPLY,
    repair="the tasks are counted again from their history",
)
def excused_right(rows: IntegrityRows) -> Iterator[Finding]:
    for group in rows.groups:
        excused = rows.counted(group).excused
        if group.killed_by_dependency != excused:
            text = f"killed_by_dependency is {group.killed_by_dependency}, not {excused}"
            yield Finding(group, text, Repair.COUNT, group.id)


@invariant(
    23,
    "A job's state follows from its tasks' states, or is the one in which it was ordered to end.",
    upheld_by="domain.state.job_rollup, domain.state.rollup",
    repair="the state is derived from the tasks again, so the job may end and settle; a wrong final"
    " state stays and is reported",
)
def follows_from_tasks(rows: IntegrityRows) -> Iterator[Finding]:
    for job in rows.jobs:
        has_ended = job.state in TERMINAL
        row = _job_row(job)
        # `roll_job` returns an ended job unchanged, so it is derived as if it had not ended.
        row = replace(row, state=S.RUNNING) if has_ended else row
        follows = roll_job(row, _group_rows(job, rows), now=_ANY_TIME)
        if job.state not in JOB_STATES:
            yield Finding(job, f"a job is never {job.state.name}")
        elif follows.state is not job.state:
            text = f"is {job.state.name}, {follows.state.name} follows from its tasks"
            if has_ended:
                yield Finding(job, f"{text}, but an end is final")
            else:
                yield Finding(job, text, Repair.ROLL, job.id)
        elif not has_ended and follows.ending_as not in (None, job.ending_as):
            text = f"is not ending, {follows.ending_as.name} follows from its tasks"
            yield Finding(job, text, Repair.ROLL, job.id)


@invariant(
    24,
    "A job has ended exactly when all its tasks have.",
    upheld_by="domain.state.job_rollup; constraint job_finished_iff_terminal",
)
def ends_with_its_tasks(rows: IntegrityRows) -> Iterator[Finding]:
    for job in rows.jobs:
        counted = [rows.counted(group).counts for group in rows.groups_of_job[job.id]]
        is_open = any(counts.get(state) for counts in counted for state in OPEN)
        if is_open == (job.finished_at is not None):
            yield Finding(job, f"finished at {job.finished_at}, tasks open: {is_open}")
        if (job.finished_at is not None) != (job.state in TERMINAL):
            yield Finding(job, f"{job.state.name}, finished at {job.finished_at}")


@invariant(
    25,
    "A settled job has ended, and all its attempts are released.",
    upheld_by="commands.state.apply, commands.convergence.repairs",
)
def settled_without_attempts(rows: IntegrityRows) -> Iterator[Finding]:
    holding = {attempt.job_id for attempt in rows.attempts if attempt.released_at is None}
    for job in rows.jobs:
        if job.settled_at is None:
            continue
        if job.finished_at is None or job.settled_at < job.finished_at:
            yield Finding(job, "settled before it was finished")
        if job.id in holding:
            yield Finding(job, "settled, but an attempt of it is not released")


@invariant(
    26,
    "No attempt is placed before its group may start, or after its job has ended.",
    upheld_by="queries.placement, commands.placement",
)
def placed_when_it_might(rows: IntegrityRows) -> Iterator[Finding]:
    for attempt in rows.attempts:
        group, job = rows.group_of.get(attempt.group_id), rows.job_of.get(attempt.job_id)
        if group is None or job is None:
            continue
        if group.startable_at is None or attempt.created_at < group.startable_at:
            yield Finding(attempt, f"placed before group {group.name} might start")
        if job.finished_at is not None and attempt.created_at > job.finished_at:
            yield Finding(attempt, f"placed after {job} had ended")


@invariant(
    27,
    "A gang with an active member meets its minima, or is being requeued, or ends.",
    upheld_by="domain.state.gangs, domain.state.job_rollup; commands.placement (whole or not at"
    " all)",
)
def gangs_whole(rows: IntegrityRows) -> Iterator[Finding]:
    for job in rows.jobs:
        if not job.coscheduled or job.is_requeuing or job.ending_as or job.state in TERMINAL:
            continue
        gang = gang_of(_group_rows(job, rows))
        if any(group.movable for group in gang) and not meets_minima(gang, job.min_available):
            yield Finding(job, "a gang below its minima, and it is not being requeued")


@invariant(
    28,
    "No group of a job may start while the job waits for other jobs.",
    upheld_by="domain.state.job_rollup (newly_startable)",
)
def blocked_not_startable(rows: IntegrityRows) -> Iterator[Finding]:
    for job in rows.jobs:
        for group in rows.groups_of_job[job.id]:
            if job.waits_for_jobs and group.startable_at is not None:
                yield Finding(group, f"may start, but {job} waits for others")


@invariant(
    30,
    "The unreleased attempts of a cell's present incarnation never hold more of any"
    " resource than the cell has.",
    upheld_by="commands.placement (checked again under the cell's lock)",
)
def never_over_committed(rows: IntegrityRows) -> Iterator[Finding]:
    for cell in rows.cells:
        for name, amount in sorted(cell.used.items()):
            if amount > cell.capacity.get(name, 0):
                yield Finding(cell, f"{amount} of {cell.capacity.get(name, 0)} {name} are in use")


@invariant(
    31,
    "A cell that has ever registered has a lease, which is of its present incarnation.",
    upheld_by="commands.cells.messages",
)
def lease_of_its_incarnation(rows: IntegrityRows) -> Iterator[Finding]:
    for cell in rows.cells:
        if (cell.lease_incarnation or "") != cell.incarnation:
            text = f"incarnation {cell.incarnation!r}, its lease's is {cell.lease_incarnation!r}"
            yield Finding(cell, text)


@invariant(
    50,
    "`is_watched` is set on a job that another job waits for, or that has a child that has not"
    " ended.",
    upheld_by="commands.jobs.links",
    repair="the flag is set",
)
def awaited_watched(rows: IntegrityRows) -> Iterator[Finding]:
    for job in rows.jobs:
        if job.id in rows.awaited and not job.is_watched:
            text = "is_watched is false, but other jobs depend on it"
            yield Finding(job, text, Repair.WATCH, job.id)


@invariant(
    51,
    "`waits_for_jobs` is set on a job with a dependency that is not met, until the job ends.",
    upheld_by="commands.jobs.links, commands.convergence.dependencies",
    repair="the flag is set if no group of the job may start yet; otherwise it is reported",
)
def dependent_waits(rows: IntegrityRows) -> Iterator[Finding]:
    dependent = {dependency.job_id for dependency in rows.dependencies}
    for job in rows.jobs:
        if job.waits_for_jobs or job.finished_at or job.ending_as or job.id not in dependent:
            continue
        text = "waits_for_jobs is false, but it waits for other jobs"
        if any(group.startable_at for group in rows.groups_of_job[job.id]):
            yield Finding(job, f"{text}, and may start")
        else:
            yield Finding(job, text, Repair.BLOCK, job.id)


@invariant(
    52,
    "A dependency on a job is decided as soon as that job meets the condition, or can no longer"
    " meet it.",
    upheld_by="commands.state.apply (in the transaction that changes the job)",
    repair="the dependency is decided: the next tick starts or ends the job that waits",
)
def dependencies_decided(rows: IntegrityRows) -> Iterator[Finding]:
    for dependency in rows.dependencies:
        # A recount decides only if it has also locked the other job, which may change otherwise.
        is_here = dependency.other is None or dependency.on_job_id in rows.job_of
        status = _status_of(dependency)
        if dependency.failed_at is not None or status is DependencyStatus.OPEN or not is_here:
            continue
        is_met = status is DependencyStatus.SATISFIED
        detail = "is met, but open" if is_met else "cannot be met, but is open"
        text = f"its dependency on job {dependency.on_job_id} (until {dependency.until}) {detail}"
        yield Finding(dependency, text, Repair.MEET if is_met else Repair.FAIL, dependency.id)


def _status_of(dependency: DependencyRecord) -> DependencyStatus:
    """Return the status of a dependency.

    A deleted job was settled, but the state in which it ended is no longer known.
    """
    if dependency.other is not None:
        return job_dependency_status(dependency.other, dependency.until)
    has_ended = dependency.until in ("finished", "settled")
    return DependencyStatus.SATISFIED if has_ended else DependencyStatus.IMPOSSIBLE


_ANY_TIME = datetime.max.replace(tzinfo=UTC)
"""A placeholder: the check does not use the time of an end."""


def _job_row(job: JobRecord) -> JobRow:
    return JobRow(
        job.id,
        job.state,
        job.min_available,
        job.explicit_minimum,
        job.max_task_failures,
        job.ending_as,
        started_at=job.started_at,
        finished_at=job.finished_at,
        coscheduled=job.coscheduled,
        is_requeuing=job.is_requeuing,
    )


def _group_rows(job: JobRecord, rows: IntegrityRows) -> list[GroupRow]:
    """Return the groups of the job with counts from their tasks."""
    found = []
    for group in rows.groups_of_job[job.id]:
        counted = rows.counted(group)
        facts = GroupFacts(group.id, group.name, counted.counts, group.min_available)
        found.append(GroupRow(facts, counted.excused, group.at_most_once))
    return found


def _in_words(counts: Sequence[int]) -> str:
    return ", ".join(f"{counts[state]} {state.name}" for state in S if counts[state]) or "none"
