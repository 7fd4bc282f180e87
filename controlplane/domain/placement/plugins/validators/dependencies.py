"""Dependencies: tasks with open dependencies are not placed.

Ticks do not read such tasks; the forecast of an unsubmitted job needs this check.
"""

from controlplane.domain.placement.model.interfaces import (
    Request,
    ValidationFailure,
    ValidationResult,
)

WAITING_FOR_DEPENDENCY = "waiting_for_dependency"


class Dependencies:
    """Defer tasks with open dependencies."""

    def check(self, request: Request) -> ValidationResult:
        """Admit all tasks or none."""
        if request.startable_at is not None:
            return ValidationResult(request.tasks)
        text = "waits until its dependencies are met"
        return ValidationResult(0, (ValidationFailure(WAITING_FOR_DEPENDENCY, text),))
