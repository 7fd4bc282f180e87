"""The `cellrun` command and the Python client, which use the HTTP API only."""

from cellrun.api.session import Session, connect
from cellrun.errors import ApiError, ClientError, StillOpen, Unreachable
from cellrun.futures.aio import AsyncExecutor
from cellrun.futures.executor import Executor
from cellrun.futures.failures import (
    BadResult,
    ClientStopped,
    JobFailed,
    JobGone,
    RemoteTraceback,
    TaskFailed,
)
from cellrun.futures.jobs import Command, Job
from cellrun.futures.program import Client
from cellrun.futures.results import CommandResult

__all__ = [
    "ApiError",
    "AsyncExecutor",
    "BadResult",
    "Client",
    "ClientError",
    "ClientStopped",
    "Command",
    "CommandResult",
    "Executor",
    "Job",
    "JobFailed",
    "JobGone",
    "RemoteTraceback",
    "Session",
    "StillOpen",
    "TaskFailed",
    "Unreachable",
    "connect",
]
