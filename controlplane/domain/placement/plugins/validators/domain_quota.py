"""Domain quota: what all unreleased attempts of a domain may hold of each resource."""

from controlplane.domain.placement.model.interfaces import Request, ValidationResult
from controlplane.domain.placement.plugins.validators.quota import check_resources
from controlplane.domain.scopes import ScopeKind


class DomainQuota:
    """Defers what would exceed the domain's quota, rejects what exceeds it alone."""

    def check(self, request: Request) -> ValidationResult:
        """By the resources of the domain's quota."""
        return check_resources(request, ScopeKind.DOMAIN)
