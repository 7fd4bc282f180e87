"""Define the documents of the result cache for the OpenAPI description."""

from datetime import datetime
from typing import Literal
from uuid import UUID

from pydantic import Field

from controlplane.api.schemas import Artifact, ResponseModel


class CacheOrigin(ResponseModel):
    """The task that populated an entry of the cache. Its job may be deleted.

    Its ids and submitter are null if the caller may not read the project that populated the entry.
    """

    job: int | None
    task: int | None
    attempt_uid: UUID | None
    submitter: str | None = Field(description="Null if the user is deleted.")
    populated_at: datetime


class CacheEntry(ResponseModel):
    """A result in the cache. In lists, `result` and `outputs` are null."""

    id: int
    key: str
    scope: Literal["project", "domain"]
    domain: str
    project: str | None = Field(
        description="The project of the task that populated it; null if the caller may not read it."
    )
    origin: CacheOrigin
    hits: int
    used_at: datetime = Field(description="Its population or its last hit.")
    size_bytes: int = Field(description="Size of the result and all outputs.")
    outputs_count: int
    result: str | None
    outputs: list[Artifact] | None
