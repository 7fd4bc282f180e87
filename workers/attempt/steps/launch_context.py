"""Fetch the launch context: secrets, the last checkpoint, the state of a runner."""

from controlplane.contract.codec import MalformedMessage
from controlplane.contract.messages.launch_context import LaunchContext
from controlplane.contract.states import FailureKind
from workers.attempt.attempt import AttemptRun
from workers.attempt.outcome import SECRET, WEB, AttemptFailed
from workers.control_api import ControlPlaneRefused, ControlPlaneUnavailable

# Long enough for a restart or a short outage of web, which must not fail an attempt.
RETRY_SECONDS = (0.2, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0, 15.0)


def read_launch_context(attempt: AttemptRun) -> None:
    """Fetch the launch context from web, if the task needs one. Raise AttemptFailed."""
    if not attempt.launch.spec.needs_launch_context:
        return
    attempt.launch_context = _fetch(attempt)
    if attempt.launch_context.missing:
        names = ", ".join(attempt.launch_context.missing)
        raise AttemptFailed(FailureKind.USER, SECRET, f"secrets: the project has no {names}")
    if attempt.launch_context.unusable:
        names = ", ".join(attempt.launch_context.unusable)
        message = f"registry_secret: {names} is not a registry login (username and password)"
        raise AttemptFailed(FailureKind.USER, SECRET, message)


def _fetch(attempt: AttemptRun) -> LaunchContext:
    text = ""
    for seconds in (*RETRY_SECONDS, None):
        try:
            return attempt.context.web.launch_context(attempt.uid)
        except (ControlPlaneUnavailable, MalformedMessage) as error:
            text = str(error)
        except ControlPlaneRefused as error:
            raise AttemptFailed(FailureKind.SYSTEM, WEB, f"launch context: {error}") from error
        if seconds is not None:
            attempt.pause(seconds)
    raise AttemptFailed(FailureKind.SYSTEM, WEB, f"launch context: web does not answer: {text}")
