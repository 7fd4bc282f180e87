"""Define the documents of bulk operations for the OpenAPI description."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from controlplane.api.schemas import MAX_REASON, JobState, ResponseModel
from controlplane.spec.fields import Model

MAX_FILTER = 255


class BulkFilterRequest(Model):
    """The jobs of a bulk operation: those that match all fields; at least one is required."""

    project: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_FILTER,
        description="As domain/project, or a project of the domain `default`.",
    )
    pool: str | None = Field(default=None, min_length=1, max_length=MAX_FILTER)
    name: str | None = Field(default=None, min_length=1, max_length=MAX_FILTER)
    labels: dict[str, Annotated[str, Field(max_length=MAX_FILTER)]] = Field(
        default={}, max_length=64
    )
    states: list[JobState] = Field(
        default=[],
        max_length=16,
        description="Of those to which the action applies: cancel and hold to open jobs, release to"
        " open ones that are held themselves, delete to ended ones, retry to ended ones that did"
        " not succeed. Empty: all of these.",
    )


class BulkPreviewRequest(Model):
    """The action and the jobs of a bulk operation."""

    action: Literal["cancel", "retry", "delete", "hold", "release"]
    filter: BulkFilterRequest


class BulkRequest(BulkPreviewRequest):
    """A bulk operation, with the reason."""

    reason: str = Field(min_length=1, max_length=MAX_REASON)


class BulkSample(ResponseModel):
    """A job that a bulk operation would process."""

    id: int
    name: str
    state: JobState
    project: str


class BulkCount(ResponseModel):
    """The jobs that a bulk operation would process now, with the newest ones."""

    count: int
    is_whole: bool = Field(
        description="Whether all jobs were counted; otherwise the newest 10,000 were read."
    )
    sample: list[BulkSample]


class BulkSelection(ResponseModel):
    """The filter of a bulk operation."""

    project: str | None
    pool: str | None
    name: str | None
    labels: dict[str, str]
    states: list[JobState]


class BulkRefusal(ResponseModel):
    """A job that did not permit the action."""

    job: int
    text: str


class BulkOperation(ResponseModel):
    """A bulk operation with its progress. `refusals`: the first 20."""

    id: int
    action: Literal["cancel", "retry", "delete", "hold", "release"]
    filter: BulkSelection
    reason: str
    by: str
    state: Literal["running", "done", "stopped"]
    created_at: datetime
    ended_at: datetime | None
    ended_because: str
    expected: int = Field(description="Jobs that were counted before the start.")
    done: int
    refused: int
    refusals: list[BulkRefusal]
