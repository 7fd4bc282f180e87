"""Common check of the three resource quotas."""

from controlplane.domain.placement.model.amounts import describe_amount
from controlplane.domain.placement.model.interfaces import (
    QuotaState,
    Request,
    ValidationFailure,
    ValidationResult,
)
from controlplane.domain.scopes import ScopeKind

QUOTA_EXCEEDED = "quota_exceeded"


def check_resources(request: Request, kind: ScopeKind) -> ValidationResult:
    """Return for how many of the tasks the quota of `kind` has resources.

    Used resources become free later, so tasks are deferred; a request above the limit itself is
    final unless the submitter allowed it.
    """
    admitted, violations = request.tasks, []
    for quota in request.quotas:
        if quota.kind is not kind:
            continue
        for name, limit in sorted(quota.limits.resources.items()):
            each = request.resources.get(name, 0)
            if not each:
                continue
            used = quota.resources.get(name, 0)
            fitting = max(limit - used, 0) // each
            if fitting < request.tasks:
                violations.append(_violation(request, quota, name, each))
            admitted = min(admitted, fitting)
    if request.is_whole and violations:
        admitted = 0
    return ValidationResult(admitted, tuple(violations))


def _violation(request: Request, quota: QuotaState, name: str, each: int) -> ValidationFailure:
    limit, used = quota.limits.resources[name], quota.resources.get(name, 0)
    requested = each * (request.tasks if request.is_whole else 1)
    figures = {
        "scope": quota.title,
        "what": name,
        "used": used,
        "requested": requested,
        "limit": limit,
    }
    words = [describe_amount(name, amount) for amount in (used, requested, limit)]
    text = f"quota of {quota.title}: {words[0]} used + {words[1]} requested > {words[2]} allowed"
    is_final = requested > limit and not request.shape.allow_unsatisfiable
    return ValidationFailure(QUOTA_EXCEEDED, text, figures, is_final)
