"""Manual release of an attempt: the operator is certain that its container is gone."""

from datetime import datetime
from uuid import UUID

import structlog

from controlplane.commands.audit import Action, AuditEntry, record
from controlplane.commands.state.apply import apply
from controlplane.commands.state.transactions import run_in_transaction
from controlplane.domain.convergence.lost_cells import HELD
from controlplane.domain.errors import Conflict, NotFound
from controlplane.domain.state.effects import ClearAlert, Effects
from controlplane.domain.state.states import TERMINAL, Reason, ReleaseKind
from controlplane.domain.state.task_changes import release_task
from controlplane.queries.locks import lock_jobs
from controlplane.queries.task_facts import find_jobs_of_attempts, load_facts_of_attempts

log = structlog.get_logger(__name__)


def release_attempt(*, uid: UUID, reason: str, actor: str, now: datetime) -> None:
    """Release the capacity of an attempt that has ended; its task may run again.

    The cell is not consulted: two containers run if the operator is wrong. Raise NotFound,
    Conflict.
    """
    job_id = find_jobs_of_attempts([uid]).get(uid)
    if job_id is None:
        raise NotFound(f"there is no attempt {uid}")

    def release() -> None:
        jobs = lock_jobs([job_id])
        facts = load_facts_of_attempts([uid]).get(uid)
        attempt = facts.attempt if facts is not None else None
        # Without facts, the task has a newer attempt, which requires the release of this one.
        if facts is None or attempt is None or attempt.released_at is not None:
            raise Conflict(f"attempt {uid} holds nothing: it is released already")
        if attempt.state not in TERMINAL:
            raise Conflict(
                f"attempt {uid} is {attempt.state.name}: cancel task {facts.task_id} first, and"
                " release the attempt if its cell does not confirm the stop"
            )
        change = release_task(
            facts, ReleaseKind.OPERATOR, Reason.RELEASED_BY_OPERATOR, now=now, message=reason
        )
        effects = Effects([change], cleared=[ClearAlert(HELD, f"attempt {uid}")])
        apply(effects, jobs=jobs, now=now, actor=actor)
        entry = AuditEntry(Action.RELEASE_ATTEMPT, f"attempt {uid}", reason, job_id=job_id)
        record(entry, actor=actor, now=now)

    run_in_transaction(release)
    log.info("attempt_released", attempt=str(uid), job=job_id, by=actor, reason=reason)
