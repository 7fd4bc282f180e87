"""Create the container with the attempt's name, labels and limits, or take over an existing one."""

import os

from controlplane.contract.messages.reports import NOT_HERE
from controlplane.contract.states import FailureKind, Phase
from workers.attempt.attempt import AttemptRun
from workers.attempt.outcome import AttemptFailed
from workers.attempt.stage_retry import with_tries
from workers.attempt.steps.inspect_container import take_over
from workers.attempt.steps.workspace import begin_creation


def create_container(attempt: AttemptRun) -> None:
    """Create the container, or take over the one of the same name. Raise AttemptFailed."""

    check_mounts(attempt, "create")

    def create() -> None:
        with attempt.turn():
            attempt.enter(Phase.CREATING)
            begin_creation(attempt)
            created = attempt.engine.create(attempt.launch, attempt.placed)
        attempt.container_id = created.container_id
        if not created.is_new:
            take_over(attempt, attempt.engine.view(attempt.uid))

    with_tries(attempt, "create", create)


def check_mounts(attempt: AttemptRun, stage: str) -> None:
    """Raise AttemptFailed if the source of a mount contains a symbolic link.

    The control plane compared only names with the pool's allowed mounts. The engine follows links
    at the start, and a task may have created one that leads to a folder that is not allowed.
    """
    for mount in attempt.launch.spec.mounts:
        source = mount.source.rstrip("/") or "/"
        found = os.path.realpath(source)
        if found != source:
            message = f"{stage}: the mount {source} leads through a symbolic link to {found}"
            raise AttemptFailed(FailureKind.USER, NOT_HERE, message)
