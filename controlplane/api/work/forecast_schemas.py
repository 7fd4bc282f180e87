"""Documents of dry runs in responses: the forecast of a job that is not submitted."""

from pydantic import Field

from controlplane.api.schemas import PendingReason, ResponseModel


class GroupForecast(ResponseModel):
    """The forecast for one group of a job that is not submitted."""

    name: str
    cells: dict[str, int] = Field(description="Number of tasks that would be placed now, by cell.")
    waiting: int = Field(description="Number of tasks that would wait.")
    reason: PendingReason | None = Field(description="Why they would wait.")
    also: list[PendingReason] = Field(description="Further reasons why they would wait.")
    is_refused: bool = Field(
        description="Whether they, and with them the job, would end UNSCHEDULABLE."
    )
    kept: dict[str, int] = Field(
        description="Number of tasks for which evictions would make room, by cell."
    )


class Victim(ResponseModel):
    """A task that would be evicted; its names are null if the caller may not read its job."""

    task: int | None
    name: str | None
    job: int | None
    cell: str | None


class RuleGrowth(ResponseModel):
    """How a retry rule would increase the request of a group's tasks, if it decides each time."""

    group: str
    rule: int = Field(description="Its number in `on_exit`, from 1.")
    requests: list[dict[str, float]] = Field(
        description="The increased requests, at most 16: cpu in cores, memory_mib, disk_mib…"
    )
    refusal: str = Field(
        description="Why the task would fail then, although retries are left; empty: it would not."
    )


class DryRun(ResponseModel):
    """The forecast for a job submitted now. It reserves nothing, so it may soon be outdated."""

    pool: str
    existing_job: int | None = Field(
        description="Id of the job with the same guid and body, which a submission would return."
    )
    groups: list[GroupForecast]
    evicts: list[Victim]
    is_complete: bool = Field(
        description="False if more tasks wait before the job than were considered."
    )
    growth: list[RuleGrowth] = Field(description="Of the retry rules that increase resources.")
