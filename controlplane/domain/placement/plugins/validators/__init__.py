"""Validators: decide whether tasks may be placed, independent of capacity."""

from collections.abc import Mapping
from types import MappingProxyType

from controlplane.domain.placement.model.interfaces import Validator
from controlplane.domain.placement.plugins.validators.concurrency import Concurrency
from controlplane.domain.placement.plugins.validators.dependencies import Dependencies
from controlplane.domain.placement.plugins.validators.domain_quota import DomainQuota
from controlplane.domain.placement.plugins.validators.pending_limit import PendingLimit
from controlplane.domain.placement.plugins.validators.project_quota import ProjectQuota
from controlplane.domain.placement.plugins.validators.start_time import StartTime
from controlplane.domain.placement.plugins.validators.user_quota import UserQuota

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
