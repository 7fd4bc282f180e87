"""The Python client: one typed method per operation of the API, and `wait`."""

from cellrun.api.bulk import BulkCalls
from cellrun.api.cells import CellCalls, PoolCalls
from cellrun.api.events import EventCalls
from cellrun.api.execs import ExecCalls
from cellrun.api.jobs import JobCalls
from cellrun.api.notifications import NotificationCalls
from cellrun.api.schedules import ScheduleCalls
from cellrun.api.tasks import CacheCalls, TaskCalls
from cellrun.api.tenancy import AccountCalls, ProjectCalls
from cellrun.settings import load_settings


class Session(
    JobCalls,
    BulkCalls,
    EventCalls,
    TaskCalls,
    CacheCalls,
    ExecCalls,
    CellCalls,
    PoolCalls,
    NotificationCalls,
    ScheduleCalls,
    ProjectCalls,
    AccountCalls,
):
    """Calls the API at `settings.url`. Every method may raise Unreachable or ApiError."""


def connect(*, is_operator: bool = False) -> Session:
    """Return a session with the current settings (`cellrun.settings`). Raise NotConfigured.

    `is_operator`: with the operator's token, if the environment has one.
    """
    return Session(load_settings(is_operator=is_operator))
