"""Validators: decide whether tasks may be placed, independent of capacity."""

from collections.abc import Mapping
from types import MappingProxyType

from controlplane.domain.placement.model.interfaces import Validator
from controlplane.domain.placement.plugins.validators.quotas import (
    Concurrency,
    DomainQuota,
    PendingLimit,
    ProjectQuota,
    UserQuota,
)
from controlplane.domain.placement.plugins.validators.start import Dependencies, StartTime

BUILT_IN: Mapping[str, type[Validator]] = MappingProxyType(
    {
        "dependencies": Dependencies,
        "start_time": StartTime,
        "pending_limit": PendingLimit,
        "user_quota": UserQuota,
        "project_quota": ProjectQuota,
        "domain_quota": DomainQuota,
        "concurrency": Concurrency,
    }
)
