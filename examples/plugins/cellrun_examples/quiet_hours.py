"""A validator: batch work starts at night only."""

from controlplane.domain.placement.model.interfaces import (
    Request,
    ValidationFailure,
    ValidationResult,
)
from controlplane.domain.state.states import Band

BEGINS, ENDS = 20, 6  # o'clock, UTC


class QuietHours:
    """Validator that defers tasks of the band `batch` from 6 to 20 o'clock UTC."""

    def check(self, request: Request) -> ValidationResult:
        """Return all tasks or none; the failure is not final, because it ends by itself."""
        hour = request.now.hour
        if request.shape.band is not Band.BATCH or hour >= BEGINS or hour < ENDS:
            return ValidationResult(request.tasks)
        text = f"batch work starts between {BEGINS} and {ENDS} o'clock UTC"
        return ValidationResult(
            0, (ValidationFailure("quiet_hours", text, {"begins": BEGINS, "ends": ENDS}),)
        )
