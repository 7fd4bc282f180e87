"""The container exists, made by us or found, with the attempt's name, labels and limits."""

import os

from controlplane.contract.messages.reports import NOT_HERE
from controlplane.contract.states import FailureKind, Phase
from workers.attempt.attempt import AttemptRun
from workers.attempt.outcome import AttemptFailed, judge_start_error
from workers.attempt.stage_retry import with_tries
from workers.attempt.steps.inspect_container import take_over
from workers.attempt.steps.workspace import begin_creation


def create_container(attempt: AttemptRun) -> None:
    """Create it, or take over the one of the same name. Raises AttemptFailed."""

    check_mounts(attempt, "create")

    def create() -> None:
        with attempt.turn():
            attempt.enter(Phase.CREATING)
            begin_creation(attempt)
            created = attempt.engine.create(attempt.launch, attempt.placed)
        attempt.container_id = created.container_id
        if not created.is_new:
            take_over(attempt, attempt.engine.view(attempt.uid))

    with_tries(
        "create",
        create,
        judge=lambda words, status: judge_start_error("create", words, status),
        pause=attempt.pause,
        back_off=attempt.context.back_off,
        note=attempt.note_try,
    )


def check_mounts(attempt: AttemptRun, stage: str) -> None:
    """No mount leads through a link, which some task may have put there. Raises AttemptFailed.

    The pool's list was compared with names: the engine follows links, also out of what is allowed,
    and that at the start.
    """
    for mount in attempt.launch.spec.mounts:
        source = mount.source.rstrip("/") or "/"
        found = os.path.realpath(source)
        if found != source:
            message = f"{stage}: the mount {source} leads through a symbolic link to {found}"
            raise AttemptFailed(FailureKind.USER, NOT_HERE, message)
