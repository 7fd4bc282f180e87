"""Cancel jobs and tasks; end the open tasks of an ending job in pages, restartable anywhere."""

from collections.abc import Sequence
from datetime import datetime

from controlplane.commands.audit import Action, AuditEntry, record
from controlplane.commands.state.apply import apply
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.contract.states import TaskState
from controlplane.domain.convergence.endings import decide_ended
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.state.effects import Effects, EndJob, ForceStops
from controlplane.domain.state.states import OPEN, Reason
from controlplane.domain.state.task_changes import ChangeCause, change_task
from controlplane.domain.state.transitions import Event
from controlplane.queries.jobs.endings import find_ending_page, find_job_of_task, load_ending
from controlplane.queries.locks import lock_jobs
from controlplane.queries.task_facts import load_facts_of_tasks

PAGE = 1_000
"""Tasks that one transaction ends or requeues."""


def cancel_job(*, job_id: int, reason: str, force: bool, actor: str, now: datetime) -> None:
    """End the job as KILLED and stop its containers; leave an ended job unchanged.

    With `force`, kill the containers at once, also those that are stopping. Raise NotFound.
    """

    def cancel() -> None:
        jobs = lock_jobs([job_id])
        if job_id not in jobs:
            raise NotFound(f"there is no job {job_id}")
        message = f"cancelled: {reason}" if reason else ""
        ending = EndJob(job_id, TaskState.KILLED, Reason.CANCELLED, message, force)
        effects = Effects(endings=[ending], stops=[ForceStops(job_id)] if force else ())
        apply(effects, jobs=jobs, now=now, actor=actor)
        record(entry, actor=actor, now=now)

    entry = _entry(Action.CANCEL_JOB, f"job {job_id}", reason, force, job_id)
    run_in_transaction(cancel)
    end_page(job_id, now=now, actor=actor)


def cancel_task(*, task_id: int, reason: str, force: bool, actor: str, now: datetime) -> None:
    """End the task as KILLED, and with it its job (as in Iris).

    With `force`, kill its container at once, also one that is stopping. Raise NotFound; Conflict if
    the task has ended and no container is left to kill.
    """
    job_id = find_job_of_task(task_id)
    if job_id is None:
        raise NotFound(f"there is no task {task_id}")

    def cancel() -> None:
        jobs = lock_jobs([job_id])
        facts = load_facts_of_tasks([task_id])
        if not jobs or not facts or facts[0].state not in OPEN:
            stops = [ForceStops(job_id, task_id)] if force else []
            if not apply(Effects(stops=stops), now=now).stops:
                raise Conflict(f"task {task_id} has ended already")
            record(entry, actor=actor, now=now)
            return
        cause = ChangeCause(Reason.CANCELLED, reason, force=force)
        change = change_task(facts[0], Event.KILLED, cause, now=now)
        apply(Effects([change]), jobs=jobs, now=now, actor=actor)
        record(entry, actor=actor, now=now)

    entry = _entry(Action.CANCEL_TASK, f"task {task_id}", reason, force, job_id)
    run_in_transaction(cancel)


def _entry(action: Action, subject: str, reason: str, force: bool, job_id: int) -> AuditEntry:
    after = {"force": True} if force else None
    return AuditEntry(action, subject, reason, job_id=job_id, after=after)


def end_page(job_id: int, *, now: datetime, actor: str = "convergence") -> int:
    """End up to 1,000 open tasks of an ending job; return how many, 0 when none is left."""

    def end() -> int:
        jobs = lock_jobs([job_id])
        ending = load_ending(job_id)
        task_ids: Sequence[int] = find_ending_page(job_id, PAGE) if ending else ()
        if ending is None or not task_ids:
            return 0
        changes = [
            decide_ended(
                facts,
                reason=Reason(ending.reason or Reason.JOB_ENDED),
                message=ending.message,
                force=ending.force,
                now=now,
            )
            for facts in load_facts_of_tasks(task_ids)
            if facts.state in OPEN
        ]
        return apply(Effects(changes), jobs=jobs, now=now, actor=actor).changed

    return run_in_transaction(end)
