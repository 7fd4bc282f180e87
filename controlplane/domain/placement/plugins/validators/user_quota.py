"""User quota: limit of resources that unreleased attempts of a user hold."""

from controlplane.domain.placement.model.interfaces import Request, ValidationResult
from controlplane.domain.placement.plugins.validators.quota import check_resources
from controlplane.domain.scopes import ScopeKind


class UserQuota:
    """Defer tasks beyond the user's quota; reject requests above the limit itself."""

    def check(self, request: Request) -> ValidationResult:
        """Check the resources of the user's quota."""
        return check_resources(request, ScopeKind.USER)
