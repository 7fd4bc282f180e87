"""The Python client: one typed method per operation of the API, and `wait`."""

from client.api.bulk import BulkCalls
from client.api.cells import CellCalls, PoolCalls
from client.api.jobs import JobCalls
from client.api.notifications import NotificationCalls
from client.api.schedules import ScheduleCalls
from client.api.tasks import CacheCalls, TaskCalls
from client.api.tenancy import AccountCalls, ProjectCalls
from client.settings import load_settings


class Session(
    JobCalls,
    BulkCalls,
    TaskCalls,
    CacheCalls,
    CellCalls,
    PoolCalls,
    NotificationCalls,
    ScheduleCalls,
    ProjectCalls,
    AccountCalls,
):
    """Calls the API at `settings.url`. Every method may raise Unreachable or ApiError."""


def connect(*, is_operator: bool = False) -> Session:
    """Return a session with the current settings (`client.settings`). Raise NotConfigured.

    `is_operator`: with the operator's token, if the environment has one.
    """
    return Session(load_settings(is_operator=is_operator))
