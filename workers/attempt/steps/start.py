"""Start the container's main process, once."""

from workers.attempt.attempt import AttemptRun
from workers.attempt.runtime import ContainerStatus, ContainerView, NoSuchContainer
from workers.attempt.stage_retry import with_tries
from workers.attempt.steps.create import check_mounts
from workers.attempt.steps.inspect_container import find_addresses
from workers.attempt.steps.permit import await_permit
from workers.attempt.transfer.standard_input import open_stdin


def start_container(attempt: AttemptRun) -> None:
    """Start the container; before a retry, check if the last try succeeded. Raise AttemptFailed."""
    tried = False

    def start() -> ContainerView:
        nonlocal tried
        if tried:
            view = attempt.engine.view(attempt.uid)
            if view is None:
                raise NoSuchContainer("the container vanished before its start")
            if view.status is not ContainerStatus.CREATED:
                return view
        tried = True
        with attempt.turn():
            await_permit(attempt)
            check_mounts(attempt, "start")
            attempt.engine.start(attempt.uid)
        return ContainerView(ContainerStatus.RUNNING, attempt.container_id or "")

    with open_stdin(attempt):
        view = with_tries(attempt, "start", start)
    attempt.mark_running(view, find_addresses(attempt))
