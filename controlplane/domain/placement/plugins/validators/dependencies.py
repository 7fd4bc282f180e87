"""Dependencies: what depends on something open is not placed.

Ticks do not even read such tasks; where a job would go before it is submitted is asked of it, too.
"""

from controlplane.domain.placement.model.interfaces import (
    Request,
    ValidationFailure,
    ValidationResult,
)

WAITING_FOR_DEPENDENCY = "waiting_for_dependency"


class Dependencies:
    """Defers what may not start yet for the sake of others."""

    def check(self, request: Request) -> ValidationResult:
        """All or nothing."""
        if request.startable_at is not None:
            return ValidationResult(request.tasks)
        text = "waits until what it depends on is there"
        return ValidationResult(0, (ValidationFailure(WAITING_FOR_DEPENDENCY, text),))
