"""Ensure that the image is on the engine, by the pull policy; report progress in percent."""

from controlplane.contract.images import registry_of
from controlplane.contract.messages.launch_context import Registry
from controlplane.contract.messages.reports import IMAGE
from controlplane.contract.states import FailureKind, Phase
from workers.attempt.attempt import STOP_CHECK_SECONDS, AttemptRun
from workers.attempt.outcome import SECRET, AttemptFailed, judge_pull_error
from workers.attempt.stage_retry import with_tries


def ensure_image(attempt: AttemptRun) -> None:
    """Pull the image if the policy requires it, or the engine lacks it. Raise AttemptFailed."""
    if not attempt.engine.needs_image:
        return
    image = attempt.launch.spec.image
    if not image:
        raise AttemptFailed(FailureKind.USER, IMAGE, "pull: the task names no image")
    if "://" in image:
        message = f"pull: {image} is a URL, not the name of an image"
        raise AttemptFailed(FailureKind.USER, IMAGE, message)

    def get_image() -> None:
        policy = attempt.launch.spec.pull_policy
        if policy != "always" and (digest := attempt.engine.find_image(image)) is not None:
            attempt.usage["image_digest"] = digest
            return
        if policy == "never":
            message = f"pull: {image} is not on the engine, and pull_policy is never"
            raise AttemptFailed(FailureKind.USER, IMAGE, message)
        _pull(attempt, image)
        if (digest := attempt.engine.find_image(image)) is not None:
            attempt.usage["image_digest"] = digest

    with_tries(attempt, "pull", get_image, judge_pull_error)
    attempt.enter(Phase.PREPARING)  # the time limit of a pull is over with the pull


def _pull(attempt: AttemptRun, image: str) -> None:
    attempt.enter(Phase.PULLING)
    pull = attempt.context.pulls.join(image, _login_for(attempt, image))
    try:
        while not pull.wait(STOP_CHECK_SECONDS):
            attempt.check()
            if pull.progress is not None:
                attempt.enter(Phase.PULLING, pull.progress)
    finally:
        attempt.context.pulls.leave(pull)
    if pull.error is not None:
        raise pull.error
    if pull.bytes:  # Podman reports no bytes, and existing layers are not fetched again
        attempt.usage["pulled_bytes"] = pull.bytes


def _login_for(attempt: AttemptRun, image: str) -> Registry | None:
    """Return the task's registry login. Raise AttemptFailed if it is for another registry."""
    login, registry = attempt.launch_context.registry, registry_of(image)
    if login is not None and login.server != registry:
        message = (
            f"registry_secret: {attempt.launch.spec.registry_secret} is a login to {login.server},"
            f" but {image} is an image of {registry}"
        )
        raise AttemptFailed(FailureKind.USER, SECRET, message)
    return login
