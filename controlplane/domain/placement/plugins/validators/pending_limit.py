"""Pending limit: maximum number of waiting tasks of a scope that take part in placement.

It keeps a scope with many submissions from filling the queue (Backend.AI: pending session limits).
The first tasks always take part, so that a scope cannot block itself.
"""

from controlplane.domain.placement.model.interfaces import (
    Request,
    ValidationFailure,
    ValidationResult,
)
from controlplane.domain.placement.plugins.validators.quota import QUOTA_EXCEEDED


class PendingLimit:
    """Defer tasks once the limit of unplaced tasks of the scope is reached in this pass."""

    def check(self, request: Request) -> ValidationResult:
        """Check `pending_tasks` of each quota."""
        admitted, violations = request.tasks, []
        for quota in request.quotas:
            limit = quota.limits.pending_tasks
            if limit is None or quota.waiting + request.tasks <= limit:
                continue
            if request.is_whole and limit and not quota.waiting:
                continue  # a gang larger than the limit would never be the first
            admitted = min(admitted, max(limit - quota.waiting, 0))
            text = (
                f"quota of {quota.title}: {quota.waiting} pending tasks + 1 requested >"
                f" {limit} that take part in placement"
            )
            figures = {
                "scope": quota.title,
                "what": "pending_tasks",
                "used": quota.waiting,
                "requested": 1,
                "limit": limit,
            }
            violations.append(ValidationFailure(QUOTA_EXCEEDED, text, figures))
        return ValidationResult(
            0 if request.is_whole and violations else admitted, tuple(violations)
        )
