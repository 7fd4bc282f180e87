"""Concurrency: limit of running tasks and jobs of a user, project or domain."""

from controlplane.domain.placement.model.interfaces import (
    QuotaState,
    Request,
    ValidationFailure,
    ValidationResult,
)
from controlplane.domain.placement.plugins.validators.quota import QUOTA_EXCEEDED


class Concurrency:
    """Defer tasks beyond a limit of running tasks or jobs (Backend.AI: concurrency limit)."""

    def check(self, request: Request) -> ValidationResult:
        """Check `running_tasks` and `running_jobs` of each quota."""
        admitted, violations = request.tasks, []
        for quota in request.quotas:
            limit = quota.limits.running_tasks
            if limit is not None and quota.running_tasks + request.tasks > limit:
                tasks = request.tasks if request.is_whole else 1
                admitted = min(admitted, max(limit - quota.running_tasks, 0))
                violations.append(_violation(request, quota, "running tasks", tasks, limit))
            limit = quota.limits.running_jobs
            jobs = quota.running_jobs + request.new_jobs
            if limit is not None and request.new_jobs and jobs > limit:
                violations.append(_violation(request, quota, "running jobs", 1, limit))
                admitted = 0
        if request.is_whole and violations:
            admitted = 0
        return ValidationResult(admitted, tuple(violations))


def _violation(
    request: Request, quota: QuotaState, what: str, requested: int, limit: int
) -> ValidationFailure:
    used = quota.running_tasks if what == "running tasks" else quota.running_jobs
    figures = {
        "scope": quota.title,
        "what": what.replace(" ", "_"),
        "used": used,
        "requested": requested,
        "limit": limit,
    }
    text = f"quota of {quota.title}: {used} {what} + {requested} requested > {limit} allowed"
    is_final = requested > limit and not request.shape.allow_unsatisfiable
    return ValidationFailure(QUOTA_EXCEEDED, text, figures, is_final)
