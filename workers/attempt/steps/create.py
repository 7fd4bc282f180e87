"""The container exists, made by us or found, with the attempt's name, labels and limits."""

from workers.attempt.attempt import Attempt
from workers.attempt.outcome import judge_start_error
from workers.attempt.steps.look import take_over
from workers.attempt.steps.workspace import begin_creation
from workers.attempt.tries import with_tries


def create_container(attempt: Attempt) -> None:
    """Create it, or take over the one of the same name. Raises AttemptFailed."""

    def create() -> None:
        with attempt.turn():
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
        back_off=attempt.around.back_off,
    )
