"""Project quota: what all unreleased attempts of a project may hold of each resource."""

from controlplane.domain.placement.model.interfaces import Request, ValidationResult
from controlplane.domain.placement.plugins.validators.quota import check_resources
from controlplane.domain.scopes import ScopeKind


class ProjectQuota:
    """Defers what would exceed the project's quota, rejects what exceeds it alone."""

    def check(self, request: Request) -> ValidationResult:
        """By the resources of the project's quota."""
        return check_resources(request, ScopeKind.PROJECT)
