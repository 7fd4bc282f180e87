"""Tables and constraints; no `save()`, no signals. `commands.effects` alone writes states."""

from controlplane.models.accounts import ApiToken
from controlplane.models.attempts import Attempt
from controlplane.models.cells import Cell, CellLease
from controlplane.models.history import Transition
from controlplane.models.images import ImageFailure
from controlplane.models.jobs import Domain, Job, JobDependency, Project, TaskGroup
from controlplane.models.operations import Alert, DeadLetter, InboxProbe, TickState
from controlplane.models.pools import Pool, Quota, Shape
from controlplane.models.secrets import Secret
from controlplane.models.tasks import Task

__all__ = [
    "Alert",
    "ApiToken",
    "Attempt",
    "Cell",
    "CellLease",
    "DeadLetter",
    "Domain",
    "ImageFailure",
    "InboxProbe",
    "Job",
    "JobDependency",
    "Pool",
    "Project",
    "Quota",
    "Secret",
    "Shape",
    "Task",
    "TaskGroup",
    "TickState",
    "Transition",
]
