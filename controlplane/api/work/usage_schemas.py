"""Define the documents of usage for the OpenAPI description."""

from pydantic import Field

from controlplane.api.schemas import ResponseModel

_KEY = "Null if the figures are not added up by it."


class UsageRow(ResponseModel):
    """What attempts of settled jobs requested and used.

    The time of an attempt is that from its creation to its release, in which it holds its request.
    """

    month: str | None = Field(description=f"Month of the release in UTC, as 2031-05. {_KEY}")
    project: str | None = Field(description=f"As domain/project. {_KEY}")
    user: str | None = Field(description=f"Owner of the jobs. {_KEY}")
    job: str | None = Field(
        description=f"Job name; `(other jobs)` for the names above 1,000 of a user in a project and"
        f" month. {_KEY}"
    )
    attempts: int
    unmeasured_attempts: int = Field(
        description="Attempts whose CPU time is not known; waste does not contain them."
    )
    requested_cpu_seconds: float = Field(description="Requested cores times seconds.")
    used_cpu_seconds: float
    wasted_cpu_seconds: float = Field(
        description="Requested and not used by attempts with a measurement; negative if they used"
        " more than requested."
    )
    requested_memory_mib_seconds: float = Field(description="Requested MiB times seconds.")
    used_memory_mib_seconds: float = Field(
        description="The peak of each attempt times its seconds, an upper bound."
    )
    wasted_memory_mib_seconds: float
    memory_peak_mib: float = Field(description="The highest peak of an attempt.")
    requested_gpu_seconds: float
