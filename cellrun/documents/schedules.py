"""Types of documents about schedules.

Generated from docs/openapi.yaml by `make docs`.
"""

from typing import Any, TypedDict


class ScheduleDocument(TypedDict):
    """A schedule with its next instant."""

    name: str
    project: str
    owner: str
    cron: str
    time_zone: str
    catch_up: str
    overlap: str
    paused: bool
    paused_because: str
    next_at: str | None
    created_at: str
    updated_at: str
    job: dict[str, Any] | None


class ScheduleFiringDocument(TypedDict):
    """What became of an instant."""

    id: int
    at: str
    fired_at: str
    outcome: str
    text: str
    job: int | None
