"""Permit an attempt: what the operator of this cell allows, and the guard of exclusive attempts."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from controlplane.contract.messages.task_options import find_restricted
from controlplane.contract.states import FailureKind
from workers.attempt.attempt import AttemptRun
from workers.attempt.events import Permit
from workers.attempt.outcome import FORBIDDEN, GUARD, LEASE_OVER, AttemptFailed

# On a loaded machine a guard takes a few seconds to start.
WAIT_SECONDS = 20.0
POLL_SECONDS = 0.05


def await_permit(attempt: AttemptRun) -> None:
    """Return when the container may be created or continue. Raise AttemptFailed."""
    waited = 0.0
    while (answer := attempt.launch.permit()) is not Permit.YES:
        if answer is Permit.NEVER:
            message = "the lease of its cell had expired, or was about to, before the start"
            raise AttemptFailed(FailureKind.OUTSIDE, LEASE_OVER, message)
        if waited >= WAIT_SECONDS:
            raise AttemptFailed(FailureKind.SYSTEM, GUARD, "the guard of its cell does not answer")
        attempt.pause(POLL_SECONDS)
        waited += POLL_SECONDS


def check_cell_policy(attempt: AttemptRun) -> None:
    """Raise AttemptFailed if the task needs privileges or mounts that this cell forbids.

    A system failure: the pool allows them, so it is not the task's fault, and another cell of the
    pool may accept the task.
    """
    for text in _find_forbidden(attempt):
        raise AttemptFailed(FailureKind.SYSTEM, FORBIDDEN, f"this cell allows no {text}")


def _find_forbidden(attempt: AttemptRun) -> Iterator[str]:
    spec, context = attempt.launch.spec, attempt.context
    if not context.privileged_allowed:
        setting = "CELLRUN_CELL_PRIVILEGED is false"
        if spec.privileged:
            yield f"privileged tasks: {setting}"
        for name in find_restricted(spec.capabilities):
            yield f"task with the capability {name}: {setting}"
    for mount in spec.mounts:
        if context.mount_roots is not None and not _lies_below(mount.source, context.mount_roots):
            yield f"mount of {mount.source}: it is not below a folder of CELLRUN_CELL_MOUNTS"


def _lies_below(source: str, roots: Sequence[Path]) -> bool:
    """Return whether `source` is one of `roots` or below it; links are checked before the start."""
    path = Path(os.path.normpath(source))
    return any(path.is_relative_to(root) for root in roots)
