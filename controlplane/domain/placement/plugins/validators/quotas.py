"""Quotas: limits of what a user, project or domain holds, runs or has waiting at once."""

from dataclasses import replace

from controlplane.domain.placement.model.amounts import describe_amount
from controlplane.domain.placement.model.interfaces import (
    QuotaState,
    Request,
    ValidationFailure,
    ValidationResult,
)
from controlplane.domain.scopes import ScopeKind

QUOTA_EXCEEDED = "quota_exceeded"


class _ResourceQuota:
    """Defer tasks beyond the resources of a quota; reject requests above the limit itself."""

    kind: ScopeKind

    def check(self, request: Request) -> ValidationResult:
        """Return for how many of the tasks the quota has resources.

        Used resources become free later, so tasks are deferred; a request above the limit itself is
        final unless the submitter allowed it.
        """
        admitted, violations = request.tasks, []
        for quota in request.quotas:
            if quota.kind is not self.kind:
                continue
            for name, limit in sorted(quota.limits.resources.items()):
                each = request.resources.get(name, 0)
                if not each:
                    continue
                used = quota.resources.get(name, 0)
                fitting = max(limit - used, 0) // each
                if fitting < request.tasks:
                    requested = each * (request.tasks if request.is_whole else 1)
                    words = [describe_amount(name, amount) for amount in (used, requested, limit)]
                    text = f"{words[0]} used + {words[1]} requested > {words[2]} allowed"
                    violations.append(_failure(request, quota, name, used, requested, limit, text))
                admitted = min(admitted, fitting)
        if request.is_whole and violations:
            admitted = 0
        return ValidationResult(admitted, tuple(violations))


class UserQuota(_ResourceQuota):
    """Limit the resources that unreleased attempts of a user hold."""

    kind = ScopeKind.USER


class ProjectQuota(_ResourceQuota):
    """Limit the resources that unreleased attempts of a project hold."""

    kind = ScopeKind.PROJECT


class DomainQuota(_ResourceQuota):
    """Limit the resources that unreleased attempts of a domain hold."""

    kind = ScopeKind.DOMAIN


class Concurrency:
    """Defer tasks beyond a limit of running tasks or jobs (Backend.AI: concurrency limit)."""

    def check(self, request: Request) -> ValidationResult:
        """Check `running_tasks` and `running_jobs` of each quota."""
        admitted, violations = request.tasks, []
        for quota in request.quotas:
            limit, used = quota.limits.running_tasks, quota.running_tasks
            if limit is not None and used + request.tasks > limit:
                tasks = request.tasks if request.is_whole else 1
                admitted = min(admitted, max(limit - used, 0))
                text = f"{used} running tasks + {tasks} requested > {limit} allowed"
                violations.append(
                    _failure(request, quota, "running_tasks", used, tasks, limit, text)
                )
            limit, used = quota.limits.running_jobs, quota.running_jobs
            if limit is not None and request.new_jobs and used + request.new_jobs > limit:
                text = f"{used} running jobs + 1 requested > {limit} allowed"
                violations.append(_failure(request, quota, "running_jobs", used, 1, limit, text))
                admitted = 0
        if request.is_whole and violations:
            admitted = 0
        return ValidationResult(admitted, tuple(violations))


class PendingLimit:
    """Limit the waiting tasks of a scope that take part in placement in one pass.

    It keeps a scope with many submissions from filling the queue (Backend.AI: pending session
    limits). The first tasks always take part, so that a scope cannot block itself.
    """

    def check(self, request: Request) -> ValidationResult:
        """Check `pending_tasks` of each quota."""
        admitted, violations = request.tasks, []
        for quota in request.quotas:
            limit, used = quota.limits.pending_tasks, quota.waiting
            if limit is None or used + request.tasks <= limit:
                continue
            if request.is_whole and limit and not used:
                continue  # a gang larger than the limit would never be the first
            admitted = min(admitted, max(limit - used, 0))
            text = f"{used} pending tasks + 1 requested > {limit} that take part in placement"
            failure = _failure(request, quota, "pending_tasks", used, 1, limit, text)
            violations.append(replace(failure, is_final=False))
        if request.is_whole and violations:
            admitted = 0
        return ValidationResult(admitted, tuple(violations))


def _failure(
    request: Request,
    quota: QuotaState,
    what: str,
    used: int,
    requested: int,
    limit: int,
    text: str,
) -> ValidationFailure:
    figures = {
        "scope": quota.title,
        "what": what,
        "used": used,
        "requested": requested,
        "limit": limit,
    }
    is_final = requested > limit and not request.shape.allow_unsatisfiable
    name = "default quota" if quota.is_default else "quota"
    return ValidationFailure(QUOTA_EXCEEDED, f"{name} of {quota.title}: {text}", figures, is_final)
