"""What hooks are to be called about: written with the change itself, for kinds that want it."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

from django.db import transaction

from controlplane.commands.hooks.registry import moments_of
from controlplane.contract.states import TaskState
from controlplane.domain.hooks.interface import HookEvent
from controlplane.domain.state.effects import ChangeTask
from controlplane.domain.state.job_rollup import JobRow
from controlplane.domain.state.states import TERMINAL
from controlplane.outbox import wakes
from controlplane.queries.sql import execute


def note_placed(
    placed: Iterable[tuple[int, UUID]], *, jobs: Mapping[int, JobRow], at: datetime
) -> None:
    """Note that attempts were placed: (job, uid) of each. Nothing, if no kind wants to be called.

    A call is due once what it is about is committed.
    """
    wanting = _wanting(jobs, HookEvent.PLACED)
    if wanting:
        _note(HookEvent.PLACED, [item for item in placed if item[0] in wanting], wanting, at)


def note_started(
    changes: Sequence[ChangeTask], *, jobs: Mapping[int, JobRow], at: datetime
) -> None:
    """Note which of the attempts have started with `changes`."""
    wanting = _wanting(jobs, HookEvent.STARTED)
    if wanting:
        started = [
            (change.job_id, change.attempt.uid)
            for change in changes
            if change.attempt is not None and change.job_id in wanting and _has_started(change)
        ]
        _note(HookEvent.STARTED, started, wanting, at)


def _wanting(jobs: Mapping[int, JobRow], moment: HookEvent) -> dict[int, str]:
    """The kinds of the jobs that are called at the moment, by job."""
    wanted = {kind for kind in {job.kind for job in jobs.values()} if moment in moments_of(kind)}
    if not wanted:
        return {}
    return {job_id: job.kind for job_id, job in jobs.items() if job.kind in wanted}


def _has_started(change: ChangeTask) -> bool:
    """Whether the program has started; the report that it runs may come with that of its end."""
    attempt = change.attempt
    if attempt is None or attempt.state_from not in (TaskState.ASSIGNED, TaskState.BUILDING):
        return False
    if attempt.state_to is TaskState.RUNNING:
        return True
    return attempt.state_to in TERMINAL and attempt.started_at is not None


def _note(
    moment: HookEvent, found: Sequence[tuple[int, UUID]], kinds: Mapping[int, str], at: datetime
) -> None:
    if not found:
        return
    execute(
        """
        INSERT INTO controlplane_hookcall (kind, moment, job_id, attempt_uid, at)
        SELECT i.kind, %s, i.job_id, i.uid, %s
        FROM unnest(%s::text[], %s::bigint[], %s::uuid[]) AS i(kind, job_id, uid)
        ON CONFLICT (attempt_uid, moment) DO NOTHING
        """,
        [
            str(moment),
            at,
            [kinds[job_id] for job_id, _ in found],
            [job_id for job_id, _ in found],
            [uid for _, uid in found],
        ],
    )
    transaction.on_commit(wakes.wake_hooks, robust=True)
