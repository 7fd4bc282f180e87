"""Define the documents of schedules for the OpenAPI description."""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import Field

from controlplane.api.schemas import ResponseModel
from controlplane.commands.schedules.configure import ScheduleFields
from controlplane.domain.schedules.calendar import MAX_CRON, MAX_ZONE
from controlplane.domain.schedules.firing import CatchUp, Overlap
from controlplane.spec.fields import Model

_CatchUp = Literal["latest", "all", "none"]
_Overlap = Literal["allow", "skip", "replace", "queue"]


class ScheduleRequest(Model):
    """A schedule. Omitted fields get their defaults."""

    cron: Annotated[str, Field(min_length=1, max_length=MAX_CRON)] = Field(
        description="Minute, hour, day, month and day of the week, such as `30 2 * * MON-FRI`; or"
        " `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`."
    )
    time_zone: Annotated[str, Field(min_length=1, max_length=MAX_ZONE)] = Field(
        default="UTC", description="Such as Europe/Berlin."
    )
    catch_up: _CatchUp = Field(
        default="latest",
        description="Which instants start a job that no process fired within a minute: the last"
        " one, all (at most 100), or none.",
    )
    overlap: _Overlap = Field(
        default="skip",
        description="At an instant while a job of the schedule has not finished: start another one,"
        " skip the instant, cancel the job and start another one, or start it afterwards.",
    )
    paused: bool = Field(default=False, description="Whether no instant is fired.")
    job: dict[str, Any] = Field(
        description="The job that each instant submits, without guid, domain and project. It gets"
        " the label `schedule`, and its guid is the name of the schedule, / and the instant."
    )

    def fields(self) -> ScheduleFields:
        """Return what the command takes."""
        return ScheduleFields(
            self.cron,
            self.job,
            self.time_zone,
            CatchUp(self.catch_up),
            Overlap(self.overlap),
            self.paused,
        )


class ScheduleDocument(ResponseModel):
    """A schedule with its next instant."""

    name: str
    project: str = Field(description="As domain/project.")
    owner: str = Field(description="The user that last wrote it, who owns its jobs.")
    cron: str
    time_zone: str
    catch_up: _CatchUp
    overlap: _Overlap
    paused: bool
    paused_because: str
    next_at: datetime | None = Field(description="The next instant; null if it is paused.")
    created_at: datetime
    updated_at: datetime
    job: dict[str, Any] | None = Field(
        description="Its job; null unless the caller may change it: it may contain passwords."
    )


class ScheduleFiringDocument(ResponseModel):
    """What became of an instant."""

    id: int
    at: datetime = Field(description="The instant of the calendar, or of a run by hand.")
    fired_at: datetime
    outcome: Literal["started", "waiting", "skipped", "missed", "refused"]
    text: str = Field(description="Why it was skipped, missed or refused.")
    job: int | None
