"""Tables and constraints, without signals. Only `commands.state.apply` writes state columns."""

from controlplane.models.accounts import (
    ApiToken,
    Membership,
    OidcIdentity,
    RecoveryCode,
    ServiceAccount,
    TotpDevice,
)
from controlplane.models.attempts import Attempt, ExecSession, StoredSize, StoredTotal, UsageTotal
from controlplane.models.cache import CacheEntry, CacheReservation
from controlplane.models.callbacks import (
    Callback,
    Delivery,
    JobEnd,
    NotificationAddress,
    NotificationEvent,
    NotificationMessage,
    NotificationRule,
)
from controlplane.models.cells import Cell, CellChange, CellLease, CellSample, ImageFailure
from controlplane.models.history import Transition
from controlplane.models.hooks import HookCall
from controlplane.models.jobs import Domain, Hold, Job, JobDependency, Project, TaskGroup
from controlplane.models.one_offs import OneOff
from controlplane.models.operations import (
    Alert,
    AuditLine,
    BulkOperation,
    DeadLetter,
    InboxProbe,
    PoolSample,
    Schedule,
    ScheduleFiring,
    TickRun,
    TickState,
    Walk,
)
from controlplane.models.pools import Pool, Quota, Shape
from controlplane.models.secrets import Secret
from controlplane.models.tasks import Task

__all__ = [
    "Alert",
    "ApiToken",
    "Attempt",
    "AuditLine",
    "BulkOperation",
    "CacheEntry",
    "CacheReservation",
    "Callback",
    "Cell",
    "CellChange",
    "CellLease",
    "CellSample",
    "DeadLetter",
    "Delivery",
    "Domain",
    "ExecSession",
    "Hold",
    "HookCall",
    "ImageFailure",
    "InboxProbe",
    "Job",
    "JobDependency",
    "JobEnd",
    "Membership",
    "NotificationAddress",
    "NotificationEvent",
    "NotificationMessage",
    "NotificationRule",
    "OidcIdentity",
    "OneOff",
    "Pool",
    "PoolSample",
    "Project",
    "Quota",
    "RecoveryCode",
    "Schedule",
    "ScheduleFiring",
    "Secret",
    "ServiceAccount",
    "Shape",
    "StoredSize",
    "StoredTotal",
    "Task",
    "TaskGroup",
    "TickRun",
    "TickState",
    "TotpDevice",
    "Transition",
    "UsageTotal",
    "Walk",
]
