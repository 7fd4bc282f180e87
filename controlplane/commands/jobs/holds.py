"""Hold and release jobs and projects. Only this module writes holds and `Job.is_held`."""

from datetime import datetime

from django.db import transaction

from controlplane.commands.audit import Action, AuditEntry, record
from controlplane.commands.state.apply_jobs import note_job
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.holds import OpenHold, check_hold, check_release
from controlplane.domain.roles import Role
from controlplane.domain.state.job_rollup import JobRow
from controlplane.domain.state.states import Reason
from controlplane.models import Hold, Job, Project
from controlplane.outbox import wakes
from controlplane.queries.holds import load_holds, load_project_holds
from controlplane.queries.locks import lock_jobs


def hold_job(*, job_id: int, reason: str, role: Role, actor: str, now: datetime) -> None:
    """Place no waiting task of the job until its release; running tasks continue.

    `role`: of the actor on the project. Raise NotFound, NotPermitted; Conflict if the job is ending
    or has ended.
    """

    def hold() -> None:
        job = _lock(job_id)
        if job.finished_at is not None or job.ending_as is not None:
            state = "has ended" if job.finished_at is not None else "is ending"
            raise Conflict(f"job {job_id} {state}")
        present = _own_hold(job_id)
        check_hold(present, subject=f"job {job_id}", role=role, reason=reason)
        _save(reason=reason, role=role, actor=actor, now=now, job_id=job_id)
        Job.objects.filter(pk=job_id).update(is_held=True)
        note_job(job, Reason.HELD, message=reason, now=now, actor=actor)
        before = None if present is None else present.as_audit()
        entry = AuditEntry(Action.HOLD_JOB, f"job {job_id}", reason, job_id=job_id, before=before)
        record(entry, actor=actor, now=now)

    run_in_transaction(hold)


def release_job(*, job_id: int, reason: str = "", role: Role, actor: str, now: datetime) -> None:
    """Release the job from its hold. Raise NotFound; Conflict if it is not held; NotPermitted."""

    def release() -> None:
        job = _lock(job_id)
        present = check_release(_own_hold(job_id), subject=f"job {job_id}", role=role)
        _end(present, now, job_id=job_id)
        Job.objects.filter(pk=job_id).update(is_held=False)
        note_job(job, Reason.HOLD_RELEASED, message=reason, now=now, actor=actor)
        entry = AuditEntry(
            Action.RELEASE_JOB, f"job {job_id}", reason, job_id=job_id, before=present.as_audit()
        )
        record(entry, actor=actor, now=now)
        transaction.on_commit(wakes.wake_placement, robust=True)

    run_in_transaction(release)


def hold_project(*, project_id: int, reason: str, role: Role, actor: str, now: datetime) -> None:
    """Place no waiting task of the project, also of later jobs, until its release.

    `role`: of the actor on the project. Raise Conflict without a reason; NotPermitted.
    """
    with transaction.atomic():
        project = _lock_project(project_id)
        present = load_project_holds([project_id]).get(project_id)
        check_hold(present, subject=f"project {project}", role=role, reason=reason)
        _save(reason=reason, role=role, actor=actor, now=now, project_id=project_id)
        before = None if present is None else present.as_audit()
        entry = AuditEntry(
            Action.HOLD_PROJECT,
            f"project {project}",
            reason,
            project_id=project_id,
            before=before,
        )
        record(entry, actor=actor, now=now)


def release_project(
    *, project_id: int, reason: str = "", role: Role, actor: str, now: datetime
) -> None:
    """Release the project from its hold; its jobs keep their own. Raise Conflict; NotPermitted."""
    with transaction.atomic():
        project = _lock_project(project_id)
        found = load_project_holds([project_id]).get(project_id)
        present = check_release(found, subject=f"project {project}", role=role)
        _end(present, now, project_id=project_id)
        entry = AuditEntry(
            Action.RELEASE_PROJECT,
            f"project {project}",
            reason,
            project_id=project_id,
            before=present.as_audit(),
        )
        record(entry, actor=actor, now=now)
        transaction.on_commit(wakes.wake_placement, robust=True)


def _save(*, reason: str, role: Role, actor: str, now: datetime, **subject: int) -> None:
    """Open a hold of the subject, or replace all but the beginning of the open one."""
    values = {"held_by": actor, "role": role.value, "reason": reason}
    beginning = {**values, "held_at": now}
    Hold.objects.update_or_create(
        **subject, ended_at=None, defaults=values, create_defaults=beginning
    )


def _end(present: OpenHold, now: datetime, **subject: int) -> None:
    Hold.objects.filter(**subject, ended_at=None).update(ended_at=max(now, present.since))


def _lock(job_id: int) -> JobRow:
    """Lock a job that is not deleted. Raise NotFound."""
    jobs = lock_jobs([job_id])
    if job_id not in jobs or not Job.objects.visible().filter(pk=job_id).exists():
        raise NotFound(f"there is no job {job_id}")
    return jobs[job_id]


def _lock_project(project_id: int) -> Project:
    found = Project.objects.select_for_update(no_key=True, of=("self",))
    return found.select_related("domain").get(pk=project_id)


def _own_hold(job_id: int) -> OpenHold | None:
    """Return the open hold of the job itself, not that of its project."""
    return next((hold for hold in load_holds([job_id]).get(job_id, ()) if not hold.project), None)
