"""Delay an exclusive attempt until its guard can end it."""

from controlplane.contract.states import FailureKind
from workers.attempt.attempt import AttemptRun
from workers.attempt.events import Permit
from workers.attempt.outcome import GUARD, LEASE_OVER, AttemptFailed

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
