"""Validators: whether tasks may be placed at all, whatever room there is; one idea, one file."""

from collections.abc import Mapping
from types import MappingProxyType

from controlplane.domain.placement.interfaces import Validator
from controlplane.domain.placement.validators.concurrency import Concurrency
from controlplane.domain.placement.validators.dependencies import Dependencies
from controlplane.domain.placement.validators.domain_quota import DomainQuota
from controlplane.domain.placement.validators.pending_limit import PendingLimit
from controlplane.domain.placement.validators.project_quota import ProjectQuota
from controlplane.domain.placement.validators.start_time import StartTime
from controlplane.domain.placement.validators.user_quota import UserQuota

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
