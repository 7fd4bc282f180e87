"""Find out what an earlier process of this cell created, before creating anything."""

from controlplane.contract.states import FailureKind
from workers.attempt.attempt import AttemptRun
from workers.attempt.outcome import VANISHED, AttemptFailed
from workers.attempt.runtime import (
    ContainerStatus,
    ContainerView,
    EngineAway,
    EngineError,
    NoSuchContainer,
)
from workers.attempt.transfer.standard_input import check_unfed

RETRY_SECONDS = (0.2, 1.0, 2.0, 5.0)  # between calls to an engine that does not answer


def inspect_container(attempt: AttemptRun) -> ContainerView | None:
    """Return the state of the container; wait for an engine that does not answer."""
    return inspect_with_retries(attempt)[0]


def inspect_with_retries(attempt: AttemptRun) -> tuple[ContainerView | None, bool]:
    """Return the state of the container, and whether the engine was unavailable before."""
    tries = 0
    while True:
        try:
            return attempt.engine.view(attempt.uid), tries > 0
        except (EngineAway, EngineError):
            attempt.rest(RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)])
            tries += 1


def inspect_own(attempt: AttemptRun) -> None:
    """Take over the container of an attempt that was begun before, in any state."""
    if attempt.begun_before:
        take_over(attempt, inspect_container(attempt))


def inspect_adopted(attempt: AttemptRun) -> None:
    """Take over the container; do not create a vanished one again. Raise AttemptFailed.

    An attempt that certainly had no container starts from the beginning while its order is valid.
    """
    view = inspect_container(attempt)
    if view is None:
        if attempt.is_uncreated and attempt.context.now() < attempt.launch.run.start_before:
            return
        what = "was never created" if attempt.is_uncreated else "is gone or was never created"
        message = f"its container {what}, and will not be created"
        attempt.may_exist = False
        raise AttemptFailed(FailureKind.OUTSIDE, VANISHED, message)
    take_over(attempt, view)


def find_addresses(attempt: AttemptRun) -> dict[str, str] | None:
    """Return the addresses of the started container's ports; None if it has none, or has ended."""
    if not attempt.launch.spec.ports:
        return None
    tries = 0
    while True:
        try:
            found = attempt.engine.ports(attempt.launch)
            host = attempt.engine.host(attempt.launch, attempt.context.address())
            break
        except NoSuchContainer:
            return None
        except (EngineAway, EngineError):
            attempt.rest(RETRY_SECONDS[min(tries, len(RETRY_SECONDS) - 1)])
            tries += 1
    host = f"[{host}]" if ":" in host else host
    return {name: f"{host}:{port}" for name, port in found.items()} or None


def take_over(attempt: AttemptRun, view: ContainerView | None) -> None:
    """Continue a started container; one that was only created is started later.

    Raise AttemptFailed if its standard input was cut off.
    """
    if view is None:
        return
    attempt.may_exist = True
    check_unfed(attempt, view)
    if view.status is not ContainerStatus.CREATED:
        attempt.mark_running(view, find_addresses(attempt))
