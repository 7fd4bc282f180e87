"""Start: tasks wait for their dependencies and for the submitter's `start_after`.

Ticks do not read tasks with open dependencies; the forecast of an unsubmitted job needs this check.
"""

from controlplane.domain.placement.model.interfaces import (
    Request,
    ValidationFailure,
    ValidationResult,
)

WAITING_FOR_DEPENDENCY = "waiting_for_dependency"
WAITING_FOR_START_TIME = "waiting_for_start_time"


class Dependencies:
    """Defer tasks with open dependencies."""

    def check(self, request: Request) -> ValidationResult:
        """Admit all tasks or none."""
        if request.startable_at is not None:
            return ValidationResult(request.tasks)
        text = "waits until its dependencies are met"
        return ValidationResult(0, (ValidationFailure(WAITING_FOR_DEPENDENCY, text),))


class StartTime:
    """Defer tasks until their start time."""

    def check(self, request: Request) -> ValidationResult:
        """Admit all tasks or none; tasks with open dependencies have no start time yet."""
        if request.startable_at is None or request.startable_at <= request.now:
            return ValidationResult(request.tasks)
        start = request.startable_at.isoformat(timespec="milliseconds")
        text = f"must not start before {start}"
        return ValidationResult(
            0, (ValidationFailure(WAITING_FOR_START_TIME, text, {"until": start}),)
        )
